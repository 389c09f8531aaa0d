"""Every kind of model writes what its own full forward says, token for token, also after saving and loading (B07)."""

import functools
import gc

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from tests import reference
from tests.backend import predict
from tests.generation.models import VOCABULARY_SIZE, ragged

PROMPTS = ragged((5, 4, 3, 1))  # a processor sees the longest row first
NEW_TOKENS = 8
DTYPES = ("float16", "bfloat16", "mixed_float16", "mixed_bfloat16")

register = keras.saving.register_keras_serializable("test_kinds_of_models")


@register
class Scale(keras.layers.Layer):
    """A user's own layer, with a weight, that treats each position alone."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones", name="scale")

    def call(self, x):
        return x * self.scale


@register
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.table, self.block, self.head = table(), block(), keras.layers.Dense(VOCABULARY_SIZE)

    def call(self, token_ids):
        return self.head(self.block(self.table(token_ids)))


def table(dtype="float32"):
    return kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None, dtype=dtype)


def block(dtype="float32"):
    return kt.layers.DecoderBlock(2, 32, dropout=0.1, norm_placement="pre", dtype=dtype)


def gpt(dtype="float32", between=None):
    """A block, or two with something between them."""
    ids = keras.Input((None,), dtype="int32")
    x = block(dtype)(table(dtype)(ids))
    x = block(dtype)(between(x)) if between else x
    x = keras.layers.LayerNormalization(dtype=dtype)(x)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE, dtype=dtype)(x))


def subclassed():
    model = Subclassed()
    model(np.asarray([[1, 2]]))
    return model


def sequential():
    layers = [keras.Input((None,), dtype="int32"), table(), block(), keras.layers.Dense(VOCABULARY_SIZE)]
    return keras.Sequential(layers)


def nested():
    """Eight blocks and a user's layer: four of them in a model in a model in the model of ids."""

    def stack(*parts):
        x = inputs = keras.Input((None, 16))
        for part in parts:
            x = part(x)
        return keras.Model(inputs, x)

    ids, blocks = keras.Input((None,), dtype="int32"), [block() for _ in range(8)]
    x = stack(stack(*blocks[:4], Scale()), *blocks[4:])(table()(ids))
    return keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(x))


def translator(dtype="float32"):
    return kt.models.transformer(
        VOCABULARY_SIZE, VOCABULARY_SIZE, 1, 2, 16, 32, start_token_id=1, share_embeddings=None, dtype=dtype
    )


def with_lora(model):
    """Adapters, which are not zero any more, on both projections of attention, the network and the tokens."""
    attention, feed_forward = (getattr(model.layers[2], name) for name in ("self_attention", "feed_forward"))
    adapted = [
        attention.query_dense,
        attention.output_dense,
        feed_forward.intermediate_dense,
        model.layers[1].token_embedding,
    ]
    for layer in adapted:
        layer.enable_lora(2)
        reference.randomize(layer, seed=1)
    return model


def quantized(model, mode):
    gc.freeze()  # Keras collects garbage once per kernel, which would take most of the time
    model.quantize(mode)
    gc.unfreeze()
    return model


KINDS = {
    "a user's own layer between the blocks": lambda: gpt(between=Scale()),
    "an operation between the blocks": lambda: gpt(between=lambda x: x * ops.sigmoid(x)),
    "subclassed": subclassed,
    "sequential": sequential,
    "eight layers, nested": nested,
    "two inputs": translator,
    "two inputs, int8": lambda: quantized(made(translator), "int8"),
}
CHANGES = {  # of a model that has already written
    "LoRA": with_lora,
    "int8": functools.partial(quantized, mode="int8"),
    "int4": functools.partial(quantized, mode="int4"),
}


def made(build):
    model = build()
    if all(weight.dtype != "int8" for weight in model.weights):
        reference.randomize(model, stddev=0.4)
    return model


def is_encoder_decoder(model):
    return len(getattr(model, "inputs", None) or ()) == 2


def write(model, **options):
    return kt.generate(model, PROMPTS, NEW_TOKENS, stop_token_id=[], return_dict=True, cache=True, **options)


def full_logits(model, written):
    """The logits (B, NEW_TOKENS, V) of the full forward that each new token was chosen by."""
    token_ids, starts = written["token_ids"], [len(prompt) for prompt in PROMPTS]
    inputs = token_ids
    if is_encoder_decoder(model):
        starts = [1] * len(PROMPTS)
        inputs = [kt.data.pad_batch(PROMPTS)[0], np.pad(token_ids, [(0, 0), (1, 0)], constant_values=1)]
    logits = predict(model, inputs)  # what pads a row stands behind it
    return np.stack([row[start - 1 :][:NEW_TOKENS] for row, start in zip(logits.astype("float64"), starts)])


def new_tokens(model, written):
    starts = [0 if is_encoder_decoder(model) else len(prompt) for prompt in PROMPTS]
    return np.stack([row[start:][:NEW_TOKENS] for row, start in zip(written["token_ids"], starts)])


def log_probs_of(tokens, logits):
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return np.take_along_axis(log_probs, tokens[..., None], -1)[..., 0]


def saved_and_loaded(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def assert_writes_the_full_forward_of(original, model):
    """Token for token; `original` is the model that `model` was loaded from, or the model itself."""
    written = write(model)
    tokens, logits = new_tokens(model, written), full_logits(original, written)
    assert tokens.tolist() == logits.argmax(-1).tolist()
    assert len(set(tokens.ravel().tolist())) > 1
    np.testing.assert_allclose(written["log_probs"], log_probs_of(tokens, logits), atol=1e-4)
    return written


@pytest.mark.parametrize("kind", KINDS)
def test_from_a_file(kind, tmp_path):
    """In float32. What was not loaded is decoded by test_generate.py."""
    model = made(KINDS[kind])
    assert_writes_the_full_forward_of(model, saved_and_loaded(model, tmp_path))


@pytest.mark.parametrize("kind", CHANGES)
def test_after_a_change_of_its_variables(kind, tmp_path):
    """What was compiled for the model as it was before is not used any more."""
    model = made(gpt)
    before = write(model)
    model = CHANGES[kind](model)
    after = assert_writes_the_full_forward_of(model, model)
    assert abs(np.subtract(after["log_probs"], before["log_probs"])).max() > 1e-3
    loaded = saved_and_loaded(model, tmp_path)  # which test_from_a_file lets write
    np.testing.assert_allclose(full_logits(loaded, after), full_logits(model, after), atol=1e-4)


@pytest.mark.parametrize("dtype, build", [*((dtype, gpt) for dtype in DTYPES), ("mixed_bfloat16", translator)])
def test_in_sixteen_bits(dtype, build, tmp_path):
    """The first row writes what it likes, the others what they must: their log-probabilities tell any logits."""
    original = made(functools.partial(build, dtype))
    script = np.random.default_rng(0).integers(0, VOCABULARY_SIZE, (len(PROMPTS), NEW_TOKENS))

    def force(logits, text):
        token = ops.take_along_axis(ops.convert_to_tensor(script), text.num_new, axis=1)
        is_it = ops.equal(ops.arange(VOCABULARY_SIZE), token)
        is_free = ops.expand_dims(ops.arange(len(PROMPTS)) == 0, -1)
        return ops.where(ops.logical_or(is_it, is_free), logits, float("-inf"))

    loaded = saved_and_loaded(original, tmp_path)
    for model in (original, loaded) if build is gpt and dtype == "mixed_bfloat16" else (loaded,):
        written = write(model, logits_processors=[force])
        tokens, logits = new_tokens(model, written), full_logits(original, written)
        assert (tokens[1:] == script[1:]).all()
        allowed = 5e-2 * abs(logits).max()
        assert (logits[0].max(-1) - np.take_along_axis(logits[0], tokens[0][:, None], -1)[:, 0] <= allowed).all()
        np.testing.assert_allclose(written["log_probs"], log_probs_of(tokens, logits), atol=allowed)


def test_a_subclassed_model_that_was_built_but_not_called():
    """Keras' `build` leaves its layers without weights: they are made before anything is compiled."""
    model = Subclassed()
    model.build((None, None))
    written = kt.generate(model, [[1, 2]], 1)
    assert written[0, 2] == predict(model, np.asarray([[1, 2]]))[0, -1].argmax()


@pytest.mark.parametrize("pad_token_id", [None, 0])
def test_frequencies_that_depend_on_the_length(pad_token_id):
    """Of a row's text, not of what pads it: every token is chosen by the text as long as it is then."""
    ids = keras.Input((None,), dtype="int32")
    tokens = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, position=None, pad_token_id=pad_token_id)
    scaling = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 2}
    attention = kt.layers.MultiHeadAttention(2, 8, rotary=kt.layers.Rotary(100.0, scaling=scaling))
    x = kt.layers.DecoderBlock(attention=attention, intermediate_dim=32)(tokens(ids))
    model = made(lambda: keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(x)))
    prompts = PROMPTS[2:]
    with pytest.warns(UserWarning, match="in full.*depend on the length of the text"):
        written = kt.generate(model, prompts, 4, return_dict=True)
    for prompt, text in zip(prompts, written["token_ids"], strict=True):
        for length in range(len(prompt), len(prompt) + 4):
            logits = predict(model, text[None, :length])[0, -1]
            assert text[length] == logits.argmax()
    assert (kt.generate(model, prompts, 4, prompt_lookup_num_tokens=2) == written["token_ids"]).all()
    longer = predict(model, np.pad(text[None, :4], [(0, 0), (0, 20)], constant_values=3))[0, 3]
    assert abs(longer - predict(model, text[None, :4])[0, 3]).max() > 1e-2  # the length counts
    with pytest.raises(ValueError, match="cannot be decoded through a cache: .*depend on the length"):
        kt.generate(model, prompts, 4, cache=True)
