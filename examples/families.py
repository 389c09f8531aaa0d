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


FAMILIES = {"transformer": transformer, "rnn": rnn}


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
