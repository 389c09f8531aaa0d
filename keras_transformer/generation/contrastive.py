"""Contrastive search: of the most probable tokens the one that is least like the text so far.

The score of a candidate is `(1 - penalty_alpha) * probability - penalty_alpha * similarity`, with the largest cosine
similarity of its hidden state to those of the tokens before it. The hidden state is what the logits are made of: the
input of the output layer.

Letters: B batch, T length, V vocabulary, D hidden, C candidates, L room for the text.

Source: Su et al. 2022, "A Contrastive Framework for Neural Text Generation" (https://arxiv.org/abs/2202.06417).
"""

import copy

import keras
from keras import ops

from keras_transformer.generation.compile import compile_function, trace_step
from keras_transformer.generation.decoders import CachedEncoderDecoder
from keras_transformer.generation.loop import Loop
from keras_transformer.generation.loop_base import repeat_all
from keras_transformer.generation.processors import Text
from keras_transformer.layers import PositionalEmbedding
from keras_transformer.ops.rows import at, repeat_rows

OUTPUT_LAYERS = (PositionalEmbedding, keras.layers.Dense, keras.layers.EinsumDense, keras.layers.ReversibleEmbedding)


class ContrastiveLoop(Loop):
    """Tries C candidates for each next token: C rows next to each other, alike but for the token fed last.

    The arguments are those of `Loop`.
    """

    tokens_fed_at_start = 1  # a token is fed to be chosen

    def __init__(self, decoder, model, source, target):
        super().__init__(with_hidden_states(decoder), model, source, target)
        self._start = compile_function(self._read_and_choose, model)

    def _read_and_choose(self, batch, done, told, noise, rule, repeats, length):
        outputs, state = self.decoder.prefill(batch, length)
        is_token = batch["positions"] >= 0
        if self.target.masked_token_id is not None:
            is_token = ops.logical_and(is_token, ops.not_equal(batch["token_ids"], self.target.masked_token_id))
        logits, hidden = self._split(outputs)
        loop = {"position": batch["next_position"], "done": done, "length": batch["last"] + 1}
        loop |= {
            "logits": at(logits, batch["last"]),
            "hidden": _pad(hidden, length),
            "is_token": _pad(is_token, length),
        }
        loop["state"] = repeat_all(state, min(rule.candidates, logits.shape[-1]))
        if rule.reads_text:
            loop["text"] = self._text(batch, rule, logits.shape[-1], length)
        loop, written = self._next(loop, told, None, rule)
        return loop, {name: ops.expand_dims(x, -1) for name, x in written.items()}

    def _split(self, outputs):
        """Logits (..., V) and hidden states (..., D) of length one, float32."""
        size = outputs.shape[-1] - self.decoder.hidden_dim
        return outputs[..., :size], ops.normalize(outputs[..., size:], axis=-1)

    def _extend(self, loop, length):
        loop = super()._extend(loop, length)
        return {**loop, **{name: _pad(loop[name], length) for name in ("hidden", "is_token")}}

    def _next(self, loop, told, noise, rule):
        logits, allowed = loop["logits"], loop["logits"]
        if rule.reads_text:
            allowed = rule.process(logits, Text(**loop["text"]), told, told["stop"])
        best, candidates = ops.top_k(allowed, min(rule.candidates, logits.shape[-1]))  # (B, C)
        candidates = ops.cast(candidates, "int32")
        probabilities = at(ops.softmax(allowed, axis=-1), candidates)

        fed = {"position": repeat_rows(loop["position"], candidates.shape[1])}
        fed["token"] = ops.reshape(candidates, (-1,))
        position = self._position(fed)
        outputs, state = self.decoder.step(loop["state"], fed["token"], position)  # (B * C, V + D)
        new_logits, hidden = self._split(ops.reshape(outputs, (*candidates.shape, -1)))

        alpha = told["penalty_alpha"]
        score = (1 - alpha) * probabilities - alpha * _similarity(hidden, loop["hidden"], loop["is_token"])
        choice = ops.argmax(ops.where(best > float("-inf"), score, float("-inf")), axis=-1)
        token = at(candidates, choice)
        rows = ops.cast(choice, "int32") + candidates.shape[1] * ops.arange(token.shape[0], dtype="int32")
        loop = {**loop, "state": self.decoder.move(state, repeat_rows(rows, candidates.shape[1]))}
        loop["position"] = ops.take(position, rows, axis=0) + 1
        loop["logits"] = at(new_logits, choice)
        here = ops.equal(ops.arange(loop["hidden"].shape[1], dtype="int32"), ops.expand_dims(loop["length"], -1))
        new_hidden = ops.expand_dims(at(hidden, choice), 1)
        loop["hidden"] = ops.where(ops.expand_dims(here, -1), new_hidden, loop["hidden"])
        if self.target.masked_token_id is not None:
            here = ops.logical_and(here, ops.expand_dims(ops.not_equal(token, self.target.masked_token_id), -1))
        loop["is_token"] = ops.logical_or(loop["is_token"], here)
        loop["length"] = loop["length"] + 1
        return self._tell(loop, token, logits, allowed, told, rule)


def with_hidden_states(decoder):
    """The decoder of a model that gives, behind its logits, the hidden states that they are made of."""
    decoder = copy.copy(decoder)
    decoder.keeps = False  # the hidden states of all tokens are needed anew
    name = "decoder" if isinstance(decoder, CachedEncoderDecoder) else "model"
    model, decoder.hidden_dim = _with_hidden_states(getattr(decoder, name))
    setattr(decoder, name, model)
    vars(decoder).pop("compiled_start", None)
    if vars(decoder).pop("step", None):  # recorded with the model as it was
        decoder.step = trace_step(decoder.step)
    return decoder


def _with_hidden_states(model):
    """A model of the same layers with one output, logits and hidden states, (B, T, V + D) float32; and D."""
    if not getattr(model, "inputs", None) or len(model.outputs) != 1:
        raise _no_hidden_states(model, "it is no functional model of one output")
    calls = []

    def call(layer, *args, **kwargs):
        outputs = layer(*args, **kwargs)
        calls.append((layer, args, outputs))
        return outputs

    # The layers are called anew, so that the graph of the model itself stays as it is.
    view = keras.Model(model.inputs, model.outputs[0])
    view = keras.models.clone_model(view, clone_function=lambda layer: layer, call_function=call)
    layer, args = next(((layer, args) for layer, args, outputs in calls if outputs is view.outputs[0]), (None, ()))
    if not isinstance(layer, OUTPUT_LAYERS):
        raise _no_hidden_states(model, f"its last layer is {getattr(layer, 'name', layer)!r} ({type(layer).__name__})")
    both = keras.layers.Concatenate(dtype="float32")([view.outputs[0], args[0]])
    return keras.Model(view.inputs, both), args[0].shape[-1]


def _no_hidden_states(model, reason):
    return ValueError(
        "`penalty_alpha` asks for contrastive search, which compares the hidden states that the logits are made of: a "
        "functional model is needed whose last layer makes the logits, `Dense`, or the tied embedding with "
        f"`reverse=True`. Received: the model {getattr(model, 'name', model)!r}; {reason}"
    )


def _similarity(candidates, hidden, is_token):
    """The largest cosine of candidates (B, C, D) with hidden (B, L, D) where there is a token: (B, C)."""
    cosine = ops.einsum("bcd,bld->bcl", candidates, hidden)
    largest = ops.max(ops.where(ops.expand_dims(is_token, 1), cosine, -1.0), axis=-1)
    return ops.where(ops.any(is_token, axis=-1, keepdims=True), largest, 0.0)


def _pad(x, length):
    """Columns up to `length` behind x (B, T, ...)."""
    return ops.pad(x, [(0, 0), (0, length - x.shape[1]), *[(0, 0)] * (len(x.shape) - 2)])
