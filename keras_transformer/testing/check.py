"""`check(model)`: what must change nothing, tried on a model.

Letters: B batch, T length, S source length.
"""

import os
import tempfile

import keras
import numpy as np
from keras import ops

from keras_transformer.generation import anatomy
from keras_transformer.generation.decoders import CachedDecoder, CachedEncoderDecoder
from keras_transformer.layers import SegmentEmbedding
from keras_transformer.ops.cache import CannotCache, LooksBothWays
from keras_transformer.testing.mask_trail import where_the_mask_ends

LENGTH = 7
PADDING = 3


class InvariantError(ValueError):
    """An invariant does not hold; the message names it, the size of the fault and, where known, the layer."""


def check(model, inputs=None, causal=None, tolerance=None):
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
        inputs: what to call the model with instead of random ids: an array or a dict of arrays of at least two rows,
            which differ in their second half, without padding.
        causal: whether the model must be causal. None: encoder-decoders must, others are asked, and the report says
            which they are.
        tolerance: largest difference allowed, relative to the largest output. None: 1e-4, and 2e-2 where a layer
            computes in 16 bits.

    Returns:
        dict from the name of each invariant to the largest difference seen, or to the reason (a str) why it was not
        tried: a classifier has no output for each token, an encoder looks both ways, Keras' own recurrent layers keep
        no cache. None of these is a fault: `generate` decodes by the full forward what has no cache.

    Raises:
        InvariantError: (a `ValueError`) with the name of the invariant.
        ValueError: `inputs` are needed, have fewer than two rows, or change nothing when their rows are swapped.

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
    is_causal = isinstance(report["future"], float)
    report["cache"] = probe.cache() if is_causal else report["future"]
    return report


class _Probe:
    def __init__(self, model, inputs, tolerance):
        self.model = model
        self.tolerance = (2e-2 if _computes_in_16_bits(model) else 1e-4) if tolerance is None else tolerance
        self.encoder_decoder = anatomy.is_encoder_decoder(model)
        self.pad = anatomy.masked_token_id(model)
        self.num_positions = anatomy.max_sequence_length(model) or np.inf
        self.inputs = self._random_ids() if inputs is None else self._named(inputs)
        num_rows = min(len(x) for x in keras.tree.flatten(self.inputs))
        if num_rows < 2:
            raise ValueError(f"`inputs` must have at least two rows. Received: {num_rows}")
        self.outputs = self._call(self.inputs)

    def _named(self, inputs):
        """A list of arrays, one for each input, as a dict by name; anything else as it is."""
        if not isinstance(inputs, (list, tuple)):
            return inputs
        names = anatomy.input_names(self.model)
        if len(names) != len(inputs):
            raise ValueError(f"`inputs` must be an array, or one array for each of {names}. Received: {len(inputs)}")
        return dict(zip(names, inputs, strict=True)) if len(names) > 1 else inputs[0]

    def _random_ids(self):
        real, names = anatomy.real_token_ids(self.model), anatomy.input_names(self.model)
        tells_types = len(names) == 2 and any(isinstance(x, SegmentEmbedding) for x in anatomy.walk(self.model))
        if real is None or len(names) not in (1, 2) or tells_types:
            raise ValueError(
                "`inputs` is needed: the model does not show an embedding of token ids, or has inputs beside them."
            )
        random = np.random.default_rng(0)
        length = anatomy.fixed_length(self.model) or min(LENGTH, max(2, self.num_positions - PADDING))

        def ids():
            return random.choice(real, (3, length)).astype("int32")

        return {name: ids() for name in names} if len(names) > 1 else ids()

    def _call(self, inputs, model=None):
        model = self.model if model is None else model
        return _arrays(model(_tensors(self._as_taken(inputs)), training=False))

    def _as_taken(self, inputs):
        """The inputs as the model takes them: in the order of its inputs, whose names Keras may have made up."""
        if isinstance(inputs, dict) and isinstance(getattr(self.model, "input", None), (list, tuple)):
            return [inputs[name] for name in anatomy.input_names(self.model)]
        return inputs

    def _require(self, name, outputs, expected, hint=lambda: ""):
        """The largest relative difference; if it is too large, an error that ends with what `hint` finds out."""
        error = 0.0
        for output, right in zip(outputs, expected, strict=True):
            scale = max(float(np.abs(right).max(initial=0)), 1e-30)
            difference = float(np.abs(output - right).max(initial=0)) / scale
            error = difference if difference > error or np.isnan(difference) else error
        if not error <= self.tolerance:
            raise InvariantError(
                f"The invariant `{name}` is broken: outputs differ by {error:.1e} of the largest, "
                f"allowed is {self.tolerance:.1e}.{hint()}"
            )
        return error

    def padding(self):
        """Padding appended to every input leaves what stands before it."""
        if self.pad is None:
            return "the model masks no id"
        if anatomy.fixed_length(self.model):
            return f"the input has the fixed length {anatomy.fixed_length(self.model)}"
        longest = max(np.shape(ids)[1] for ids in keras.tree.flatten(self.inputs))
        width = min(PADDING, self.num_positions - longest)
        if width < 1:
            return "all learned positions are taken"
        error = 0.0
        # Sources and targets are of lengths of their own; the inputs of any other model belong together.
        for names in [[name] for name in self._names()] if self.encoder_decoder else [self._names()]:
            padded = self.inputs
            for name in names:
                padded = self._changed(
                    name, lambda ids: np.pad(ids, [(0, 0), (0, width)], constant_values=self.pad), padded
                )
            lengths = [output.shape[1] if output.ndim > 2 else None for output in self.outputs]
            outputs = [x if n is None else x[:, :n] for x, n in zip(self._call(padded), lengths, strict=True)]
            found = self._require(
                *("padding", outputs, self.outputs),
                hint=lambda padded=padded: where_the_mask_ends(self.model, self._as_taken(padded)),
            )
            error = max(error, found)
        return error

    def batch(self):
        """A row alone gives what it gives among others."""
        alone = [self._call(keras.tree.map_structure(lambda x, i=i: x[i : i + 1], self.inputs)) for i in range(2)]
        together = [np.concatenate(rows) for rows in zip(*alone, strict=True)]
        return self._require("batch", together, [output[:2] for output in self.outputs])

    def future(self, causal):
        """Other tokens in the second half leave the outputs of the first half."""
        ids = self._target_ids()
        half = ids.shape[1] // 2
        if any(output.ndim < 3 or output.shape[1] != ids.shape[1] for output in self.outputs):
            return "the model has no output for each token"
        changed, differ = self.inputs, False
        for name in ["decoder_token_ids"] if self.encoder_decoder else self._names():
            before = changed
            changed = self._changed(name, lambda x: np.concatenate([x[:, :half], x[::-1, half:]], axis=1), before)
            pair = (keras.tree.flatten(before), keras.tree.flatten(changed))
            differ |= any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(*pair, strict=True))
        if not differ:
            raise ValueError("The rows of `inputs` must differ in their second half, else nothing can be seen there.")
        outputs = [output[:, :half] for output in self._call(changed)]
        try:
            return self._require("future", outputs, [output[:, :half] for output in self.outputs])
        except InvariantError:
            if causal or self.encoder_decoder and causal is None:
                raise
            return "the model looks both ways"

    def compiled(self):
        """`predict` gives what a plain call gives."""
        outputs = _arrays(self.model.predict(self._as_taken(self.inputs), verbose=0))
        return self._require("compiled", outputs, self.outputs)

    def saved(self):
        """A model that went through a file gives what it gave before."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.keras")
            try:
                self.model.save(path)
                loaded = keras.models.load_model(path)
            except Exception as error:
                raise InvariantError(
                    f"The invariant `saved` is broken ({type(error).__name__}): {_first_line(error)}"
                ) from error
        outputs = self._call(self.inputs, loaded)
        return self._require("saved", outputs, self.outputs)

    def cache(self):
        """Token by token gives what all at once gives."""
        reason = self._reason_against_cache()
        if reason is not None:
            return reason
        half = max(1, self._target_ids().shape[1] // 2)
        foreign = sorted({f"{x.name} ({type(x).__name__})" for x in anatomy.foreign_layers(self.model)})
        try:
            logits = self._token_by_token(half)
        except (CannotCache, LooksBothWays) as error:
            return str(error)
        except Exception as error:
            if not foreign:
                raise
            return f"it cannot be fed a single token ({type(error).__name__}: {_first_line(error)})"
        if logits is None:
            return "none of its layers keeps a cache"
        hint = f" Not of this library and maybe mixing positions: {', '.join(foreign)}." if foreign else ""
        return self._require("cache", _arrays(logits), [self.outputs[0][:, half - 1 :]], lambda: hint)

    def _token_by_token(self, num_prompt_tokens):
        """Logits from the last token of the prompt on; None if no layer keeps anything."""
        decoder = (CachedEncoderDecoder if self.encoder_decoder else CachedDecoder)(self.model)
        ids = self._target_ids()
        num_rows, length = ids.shape[:2]
        prompt = {
            "token_ids": ids[:, :num_prompt_tokens],
            "positions": _positions(num_rows, num_prompt_tokens),
            "last": np.full(num_rows, num_prompt_tokens - 1, "int32"),
        }
        if self.encoder_decoder:
            source_ids = np.asarray(self.inputs["encoder_token_ids"])
            prompt |= {"source_ids": source_ids, "source_positions": _positions(*source_ids.shape)}
        of_token, state = decoder.start(_tensors(prompt), length)
        if not state["cache"]["layers"]:
            return None
        logits = [of_token]
        for i in range(num_prompt_tokens, length):
            of_token, state = decoder.step(state, *_tensors((ids[:, i], np.full(num_rows, i, "int32"))))
            logits.append(of_token)
        return ops.stack(logits, axis=1)

    def _target_ids(self):
        """What is written token by token: the decoder's side, or all there is."""
        if self.encoder_decoder:
            return np.asarray(self.inputs["decoder_token_ids"])
        return np.asarray(keras.tree.flatten(self.inputs)[0])

    def _reason_against_cache(self):
        """What is known against a cache before anything is tried, or None."""
        length = anatomy.fixed_length(self.model)
        if length is not None:
            return f"the input has the fixed length {length}"
        if self.encoder_decoder and not anatomy.has_sub_models(self.model):
            return 'the graph has no sub-models called "encoder" and "decoder"'
        if len(self.outputs) > 1 or len(self._names()) > 1 + self.encoder_decoder:
            return "the model has more than one input or output"
        return None

    def _names(self):
        return list(self.inputs) if isinstance(self.inputs, dict) else [None]

    def _changed(self, name, change, inputs=None):
        inputs = self.inputs if inputs is None else inputs
        if name is None:
            return change(np.asarray(inputs))
        return {**inputs, name: change(np.asarray(inputs[name]))}


def _computes_in_16_bits(model):
    return any(getattr(layer, "compute_dtype", None) in ("float16", "bfloat16") for layer in anatomy.walk(model))


def _tensors(inputs):
    return keras.tree.map_structure(ops.convert_to_tensor, inputs)


def _arrays(outputs):
    return [ops.convert_to_numpy(ops.cast(x, "float32")) for x in keras.tree.flatten(outputs)]


def _positions(num_rows, length):
    return np.tile(np.arange(length, dtype="int32"), (num_rows, 1))


def _first_line(error):
    return (str(error).strip() or "no message").splitlines()[0]
