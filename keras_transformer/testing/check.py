"""`check(model)`: what must change nothing, tried on a model.

Letters: B batch, T length, S source length.
"""

import os
import tempfile

import keras
import numpy as np
from keras import ops

from keras_transformer.generation import anatomy
from keras_transformer.generation.decoders import CachedDecoder, CachedEncoderDecoder, FullForward
from keras_transformer.generation.probe import reason_against_cache
from keras_transformer.testing.mask_trail import where_the_mask_ends

LENGTH = 7
PADDING = 3


class InvariantError(ValueError):
    """An invariant does not hold; the message names it, the size of the fault and, where known, the layer."""


def check(model, inputs=None, causal=None, tolerance=1e-4):
    """Try the invariants of a transformer on a model and raise at the first that is broken.

    | name | what changes nothing |
    |---|---|
    | `padding` | padding behind a row, for models that mask a pad id |
    | `batch` | the other rows of the batch |
    | `future` | later tokens, for the tokens before them (causal models) |
    | `compiled` | `predict` instead of a plain call |
    | `saved` | saving as `.keras` and loading |
    | `cache` | decoding token by token instead of all at once (causal models) |

    Args:
        model: a functional or sequential Keras model over token ids (B, T), or over the two inputs of an
            encoder-decoder. Any other model needs `inputs`.
        inputs: what to call the model with instead of random ids: an array or a dict of arrays of at least two rows
            without padding.
        causal: whether the model must be causal. None: encoder-decoders must, others are asked, and the report says
            which they are.
        tolerance: largest difference allowed, relative to the largest output.

    Returns:
        dict from the name of each invariant to the largest difference seen, or to the reason why it was not tried.

    Raises:
        InvariantError: (a `ValueError`) with the name of the invariant.

    Example: `check(model)["padding"]  # 1.2e-07`
    """
    probe = _Probe(model, inputs, tolerance)
    report = {
        "padding": probe.padding(),
        "batch": probe.batch(),
        "future": probe.future(causal),
        "compiled": probe.compiled(),
        "saved": probe.saved(),
    }
    report["cache"] = probe.cache() if isinstance(report["future"], float) else "the model is not causal"
    return report


class _Probe:
    def __init__(self, model, inputs, tolerance):
        self.model, self.tolerance = model, tolerance
        self.encoder_decoder = anatomy.is_encoder_decoder(model)
        self.pad = anatomy.masked_token_id(model)
        self.inputs = self._random_ids() if inputs is None else inputs
        self.outputs = self._call(self.inputs)

    def _random_ids(self):
        real = anatomy.real_token_ids(self.model)
        if real is None or len(anatomy.input_names(self.model)) not in (1, 2):
            raise ValueError("`inputs` is needed: the model does not show an embedding of token ids.")
        random = np.random.default_rng(0)
        length = anatomy.fixed_length(self.model) or LENGTH

        def ids():
            return random.choice(real, (3, length)).astype("int32")

        names = anatomy.input_names(self.model)
        return {name: ids() for name in names} if len(names) > 1 else ids()

    def _call(self, inputs):
        outputs = self.model(keras.tree.map_structure(ops.convert_to_tensor, inputs), training=False)
        return _arrays(outputs)

    def _require(self, name, outputs, expected, hint=""):
        error = 0.0
        for output, right in zip(outputs, expected, strict=True):
            scale = max(float(np.abs(right).max(initial=0)), 1e-30)
            difference = float(np.abs(output - right).max(initial=0)) / scale
            error = difference if difference > error or np.isnan(difference) else error
        if not error <= self.tolerance:
            raise InvariantError(
                f"The invariant `{name}` is broken: outputs differ by {error:.1e} of the largest, "
                f"allowed is {self.tolerance:.1e}.{hint}"
            )
        return error

    def padding(self):
        """Padding appended to every input leaves what stands before it."""
        if self.pad is None:
            return "the model masks no id"
        if anatomy.fixed_length(self.model):
            return "the input has a fixed length"
        error = 0.0
        for name in self._names():
            padded = self._changed(name, lambda ids: np.pad(ids, [(0, 0), (0, PADDING)], constant_values=self.pad))
            lengths = [output.shape[1] if output.ndim > 2 else None for output in self.outputs]
            outputs = [x if n is None else x[:, :n] for x, n in zip(self._call(padded), lengths, strict=True)]
            hint = where_the_mask_ends(self.model, padded)
            error = max(error, self._require("padding", outputs, self.outputs, hint))
        return error

    def batch(self):
        """A row alone gives what it gives among others."""
        alone = [self._call(keras.tree.map_structure(lambda x, i=i: x[i : i + 1], self.inputs)) for i in range(2)]
        together = [np.concatenate(rows) for rows in zip(*alone, strict=True)]
        return self._require("batch", together, [output[:2] for output in self.outputs])

    def future(self, causal):
        """Other tokens in the second half leave the outputs of the first half."""
        name = "decoder_token_ids" if self.encoder_decoder else self._names()[0]
        ids = self.inputs if name is None else self.inputs[name]
        half = ids.shape[1] // 2
        changed = self._changed(name, lambda x: np.concatenate([x[:, :half], x[::-1, half:]], axis=1))
        if any(output.ndim < 3 or output.shape[1] != ids.shape[1] for output in self.outputs):
            return "the model has no output for each token"
        outputs = [output[:, :half] for output in self._call(changed)]
        try:
            return self._require("future", outputs, [output[:, :half] for output in self.outputs])
        except InvariantError:
            if causal or self.encoder_decoder and causal is None:
                raise
            return "the model looks both ways"

    def compiled(self):
        """`predict` gives what a plain call gives."""
        outputs = _arrays(self.model.predict(self.inputs, verbose=0))
        return self._require("compiled", outputs, self.outputs)

    def saved(self):
        """A model that went through a file gives what it gave before."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.keras")
            self.model.save(path)
            loaded = keras.models.load_model(path)
        outputs = _arrays(loaded(keras.tree.map_structure(ops.convert_to_tensor, self.inputs), training=False))
        return self._require("saved", outputs, self.outputs)

    def cache(self):
        """Token by token gives what all at once gives."""
        if self.encoder_decoder and not anatomy.has_sub_models(self.model):
            return 'the graph has no sub-models called "encoder" and "decoder"'
        cached = (CachedEncoderDecoder if self.encoder_decoder else CachedDecoder)(self.model)
        ids = anatomy.real_token_ids(self.model)
        if ids is None:
            return "the model does not show an embedding of token ids"
        is_float32 = self.model.compute_dtype == "float32"
        full = FullForward(self.model, self.encoder_decoder)
        reason = reason_against_cache(cached, full, ids, self.encoder_decoder, is_float32)
        if reason is not None:
            raise InvariantError(f"The invariant `cache` is broken: {reason}.")
        return 0.0

    def _names(self):
        return list(self.inputs) if isinstance(self.inputs, dict) else [None]

    def _changed(self, name, change):
        if name is None:
            return change(np.asarray(self.inputs))
        return {**self.inputs, name: change(np.asarray(self.inputs[name]))}


def _arrays(outputs):
    return [ops.convert_to_numpy(ops.cast(x, "float32")) for x in keras.tree.flatten(outputs)]
