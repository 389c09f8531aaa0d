"""`examples/translation.py` with KerasHub's encoder and decoder layers instead of ours, to compare the scores with.

    python benchmarks/translation_peer.py --tsv train.tsv --valid valid.tsv --test test.tsv --minutes 20 --backend jax

Takes the options of the example, and trains on the same batches, for the same time, with the same loss, optimizer and
schedule, a stack of the same sizes: one token table for source, target and output, norm first, KerasHub's own learned
positions and initial values. Decoding is greedy, with KerasHub's caches, compiled on TensorFlow and JAX.
"""

import json
import math
import os
import sys
import time

import common

sys.path.insert(0, str(common.ROOT / "examples"))
if "--backend" in sys.argv[:-1]:
    os.environ["KERAS_BACKEND"] = sys.argv[sys.argv.index("--backend") + 1]  # read when keras is imported

import keras
import keras_hub
import numpy as np
from keras import ops
from sacrebleu import BLEU, CHRF

import keras_transformer as kt
from translation import batches, compile_model, parse_arguments, read_texts

ROWS = 64  # decoded together, as in `kt.generate`


class TranslationStack(keras.Model):
    """{encoder_token_ids (B, S), decoder_token_ids (B, T)} -> float32 logits (B, T, V)."""

    def __init__(self, vocabulary_size, args):
        super().__init__()
        self.num_heads, self.hidden_dim = args.heads, args.hidden_dim
        self.embedding = keras_hub.layers.TokenAndPositionEmbedding(
            vocabulary_size, args.max_length, args.hidden_dim, mask_zero=True
        )
        self.dropout = keras.layers.Dropout(args.dropout)
        options = {"dropout": args.dropout, "normalize_first": True}
        sizes = args.intermediate_dim, args.heads
        self.encoder_blocks = [keras_hub.layers.TransformerEncoder(*sizes, **options) for _ in range(args.layers)]
        self.decoder_blocks = [keras_hub.layers.TransformerDecoder(*sizes, **options) for _ in range(args.layers)]
        self.encoder_norm = keras.layers.LayerNormalization(epsilon=1e-5)
        self.decoder_norm = keras.layers.LayerNormalization(epsilon=1e-5)

    def call(self, inputs, training=None):
        source, target = inputs["encoder_token_ids"], inputs["decoder_token_ids"]
        states, source_mask = self.encode(source, training)
        x = self.dropout(self.embedding(target), training=training)
        for block in self.decoder_blocks:
            x = block(
                x,
                states,
                decoder_padding_mask=ops.not_equal(target, 0),
                encoder_padding_mask=source_mask,
                training=training,
            )
        return self.logits(x)

    def encode(self, source, training=None):
        mask = ops.not_equal(source, 0)
        x = self.dropout(self.embedding(source), training=training)
        for block in self.encoder_blocks:
            x = block(x, padding_mask=mask, training=training)
        return self.encoder_norm(x), mask

    def logits(self, x):
        return self.embedding.token_embedding(self.decoder_norm(x), reverse=True)

    def step(self, tokens, index, states, source_mask, caches, cross_index=None):
        """The next tokens (B,) and the caches, a pair of one self- and one cross-attention cache per block."""
        x = self.embedding.token_embedding(tokens[:, None])
        x = x + self.embedding.position_embedding(x, start_index=index)
        updated = []
        for block, (self_cache, cross_cache) in zip(self.decoder_blocks, caches):
            x, *cache = block(
                x,
                states,
                encoder_padding_mask=source_mask,
                self_attention_cache=self_cache,
                self_attention_cache_update_index=index,
                cross_attention_cache=cross_cache,
                cross_attention_cache_update_index=cross_index,
            )
            updated.append(tuple(cache))
        return ops.cast(ops.argmax(self.logits(x)[:, 0], axis=-1), "int32"), updated


class Greedy(keras.Model):
    """Source ids (B, S) -> target ids (B, length), of which those behind the stop token mean nothing.

    A model rather than a function, so that `predict` compiles it on every backend that can.
    """

    def __init__(self, stack, length):
        super().__init__()
        self.stack, self.length = stack, length

    def call(self, source):
        stack, length = self.stack, self.length
        states, source_mask = stack.encode(source)
        rows, head = ops.shape(source)[0], (stack.num_heads, stack.hidden_dim // stack.num_heads)
        caches = [
            (ops.zeros((rows, 2, length, *head)), ops.zeros((rows, 2, ops.shape(source)[1], *head)))
            for _ in stack.decoder_blocks
        ]
        start = ops.full((rows,), kt.data.Tokenizer.start_token_id, dtype="int32")
        tokens, caches = stack.step(start, 0, states, source_mask, caches, cross_index=0)
        output = ops.concatenate([tokens[:, None], ops.zeros((rows, length - 1), "int32")], axis=1)
        cross_caches = [cross_cache for _, cross_cache in caches]

        def is_unfinished(index, tokens, output, self_caches):
            stopped = ops.any(ops.equal(output, kt.data.Tokenizer.stop_token_id), axis=1)
            return ops.logical_and(index < length, ops.logical_not(ops.all(stopped)))

        def step(index, tokens, output, self_caches):
            caches = list(zip(self_caches, cross_caches))
            tokens, caches = stack.step(tokens, index, states, source_mask, caches)
            output = ops.slice_update(output, (0, index), tokens[:, None])
            return index + 1, tokens, output, [self_cache for self_cache, _ in caches]

        self_caches = [self_cache for self_cache, _ in caches]
        state = (ops.convert_to_tensor(1, "int32"), tokens, output, self_caches)
        return ops.while_loop(is_unfinished, step, state)[2]


def translate(stack, tokenizer, texts, max_length):
    """Greedy translations; texts of like length are decoded together."""
    sources = [source[:max_length] for source in tokenizer.encode(texts)]
    order = np.argsort([len(source) for source in sources], kind="stable")
    models, translations = {}, [None] * len(texts)
    for first in range(0, len(texts), ROWS):
        rows = order[first : first + ROWS]
        longest = max(len(sources[row]) for row in rows)
        length = min(max_length, 16 * math.ceil(longest / 16))
        token_ids, _ = kt.data.pad_batch([sources[row] for row in rows], length=length)
        token_ids = np.pad(token_ids, ((0, ROWS - len(rows)), (0, 0)), mode="edge")
        if length not in models:
            models[length] = Greedy(stack, min(max_length, 2 * length + 16))
        for row, target in zip(rows, models[length].predict(token_ids, batch_size=ROWS, verbose=0)):
            stops = np.flatnonzero(target == tokenizer.stop_token_id)
            translations[row] = tokenizer.decode(target[: stops[0]] if len(stops) else target)[0]
    return translations


def main():
    args = parse_arguments()
    kt.training.keep_memory()  # as the example does, and so does the next: layers are to be compared
    kt.training.end_epochs_at_once()
    keras.utils.set_random_seed(args.seed)
    train, valid, test, language = read_texts(args)
    tokenizer = kt.data.train_tokenizer(train.sources + train.targets, args.vocabulary_size)
    train_batches, valid_batches = (batches(pairs, tokenizer, args) for pairs in (train, valid))
    stack = TranslationStack(tokenizer.vocabulary_size, args)
    stack(train_batches[0][0])
    compile_model(stack, args)
    print(f"batches: {train_batches.summary()}")
    print(f"KerasHub: {stack.count_params():,} parameters, {tokenizer.vocabulary_size:,} pieces")

    steps = math.ceil(args.epochs * len(train_batches)) if args.epochs else None
    budget = kt.training.Budget(args.learning_rate, args.warmup_steps, steps, args.minutes and args.minutes * 60)
    stack.fit(
        train_batches,
        validation_data=valid_batches,
        epochs=math.ceil(args.epochs or 10_000),
        callbacks=[budget],
        verbose=1 if sys.stdout.isatty() else 2,
    )
    tokens = train_batches.num_real_tokens * budget.step / len(train_batches)
    begin = time.monotonic()
    translations = translate(stack, tokenizer, test.sources, args.max_length)
    seconds = time.monotonic() - begin
    characters = {"zh": "zh", "ja": "char"}.get(language.replace("_", "-").split("-")[0], "13a")
    results = {
        "backend": keras.config.backend(),
        "batches": budget.step,
        "real_tokens_per_second": round(tokens / budget.seconds_in_batches),
        "bleu": round(BLEU(tokenize=characters).corpus_score(translations, [test.targets]).score, 2),
        "chrf": round(CHRF().corpus_score(translations, [test.targets]).score, 2),
        "exact_match": sum(ours == theirs for ours, theirs in zip(translations, test.targets)) / len(test),
        "decoding_seconds": round(seconds, 1),
    }
    args.output.mkdir(parents=True, exist_ok=True)
    common.write_json(args.output / "translation_peer.json", results)
    print(json.dumps(results, indent=2))
    for index in range(0, len(test), math.ceil(len(test) / 5)):
        print(f"\n  source       {test[index][0]}\n  translation  {translations[index]}")


if __name__ == "__main__":
    main()
