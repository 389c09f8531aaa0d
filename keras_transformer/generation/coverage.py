"""Coverage of a source by its target: how much attention each source token got from all target tokens together.

Letters: B rows, N heads, T target tokens that are fed, S source length.

Source: Wu et al. 2016, equation 14 (https://arxiv.org/abs/1609.08144).
"""

from keras import ops

from keras_transformer.generation.decoders import CachedEncoderDecoder
from keras_transformer.ops.cache_entries import is_frozen, is_state
from keras_transformer.ops.capture import ScoresScope

LEAST = 1e-9  # a source token that got no attention at all counts as this much: its logarithm is finite


def check_decoder(decoder):
    """Refuse `coverage_penalty` where there is no cross-attention to look at."""
    if not isinstance(decoder, CachedEncoderDecoder):
        raise ValueError(
            "`coverage_penalty` needs an encoder-decoder that is decoded through the cache: coverage is the sum of its "
            'cross-attention. For that a model has sub-models called "encoder" and "decoder", as '
            f"`kt.models.transformer` makes them, and `cache` is not False. The model is {decoder.model.name!r}."
        )


def run(function, *arguments):
    """A decoder's `start` or `step`: its logits and state, and the probabilities (B, T, S) of its attention.

    The layer is the last one that attends to the encoder, and the mean is over its heads.
    """
    with ScoresScope() as scope:
        logits, state = function(*arguments)
    layers = state["cache"]["layers"]
    attends = [entry for _, entry in sorted(layers.items(), key=lambda item: int(item[0])) if not is_state(entry)]
    slots = [slot for slot, entry in enumerate(attends) if is_frozen(entry)]
    if not slots:
        raise ValueError("`coverage_penalty` needs cross-attention; the decoder of this model has none.")
    # One record for each slot of attention, behind those of an encoder.
    _, scores = scope.records[slots[-1] - len(attends)]
    return logits, state, ops.mean(ops.cast(scores, "float32"), axis=1)


def start(attention, batch, masked_token_id):
    """The coverage after the beginning of a target: `attention` (B, S) got so far, `is_token` (B, S), what to cover."""
    is_fed = ops.arange(attention.shape[1], dtype="int32") <= ops.expand_dims(batch["last"], -1)
    is_token = batch["source_positions"] >= 0
    if masked_token_id is not None:
        is_token = ops.logical_and(is_token, ops.not_equal(batch["source_ids"], masked_token_id))
    got = ops.sum(attention * ops.cast(ops.expand_dims(is_fed, -1), "float32"), axis=1)
    return {"attention": got, "is_token": is_token}


def add(coverage, attention):
    """The coverage with the attention (B, 1, S) of one more token."""
    return {**coverage, "attention": coverage["attention"] + attention[:, 0]}


def move(coverage, rows):
    """The coverage with the rows in another order; rows that swap have the same source."""
    return {**coverage, "attention": ops.take(coverage["attention"], rows, axis=0)}


def log_coverage(coverage):
    """The sum over the source tokens of log(min(attention, 1)), (B,): 0 where all are covered, else negative."""
    logs = ops.log(ops.clip(coverage["attention"], LEAST, 1.0))
    return ops.sum(ops.where(coverage["is_token"], logs, 0.0), axis=-1)
