"""The encoder-decoders that `translation.py` trains: `--model NAME` calls the function of that name in `FAMILIES`.

A further family is one more function here, and one more line in the table. Each gets the parsed options and what all
builders have in common.
"""


def transformer(args, **common):
    import keras_transformer as kt

    sizes = {"num_heads": args.heads, "intermediate_dim": args.intermediate_dim}
    return kt.models.transformer(**common, **sizes, norm_placement="pre")


def rnn(args, **common):
    import keras_transformer as kt

    attention = None if args.attention == "none" else args.attention
    return kt.models.rnn(**common, cell=args.cell, attention=attention)


def t5(args, **common):
    import keras_transformer as kt

    sizes = {"num_heads": args.heads, "key_dim": args.hidden_dim // args.heads, "gated": True}
    return kt.models.t5(None, **_one_vocabulary(common), **sizes, intermediate_dim=args.intermediate_dim)


def bart(args, **common):
    import keras_transformer as kt

    sizes = {"num_heads": args.heads, "intermediate_dim": args.intermediate_dim, "norm_placement": "pre"}
    return kt.models.bart(None, **_one_vocabulary(common), **sizes, pad_token_id=0)


FAMILIES = {"transformer": transformer, "rnn": rnn, "t5": t5, "bart": bart}


def build(tokenizer, args):
    """A model of the family `args.model`, not compiled, with one vocabulary for both languages."""
    return FAMILIES[args.model](
        args,
        source_vocabulary_size=tokenizer.vocabulary_size,
        target_vocabulary_size=tokenizer.vocabulary_size,
        num_layers=args.layers,
        hidden_dim=args.hidden_dim,
        dropout=args.dropout,
        share_embeddings="all",
        start_token_id=tokenizer.start_token_id,
        stop_token_id=tokenizer.stop_token_id,
    )


def _one_vocabulary(common):
    """What T5 and BART take: they have a single vocabulary, and share its table by themselves."""
    others = {key: value for key, value in common.items() if "vocabulary" not in key and key != "share_embeddings"}
    return {"vocabulary_size": common["target_vocabulary_size"], **others}
