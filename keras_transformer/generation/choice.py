"""Which way a model is decoded: through a cache where that gives the full forward's logits, else in full."""

import contextlib

import keras
from keras import ops

from keras_transformer.generation import anatomy
from keras_transformer.generation.compile import trace_step
from keras_transformer.generation.decoders import CachedDecoder, CachedEncoderDecoder, FullForward
from keras_transformer.generation.probe import Probe
from keras_transformer.ops.cache import LooksBothWays


def build(model, token_ids):
    """Make the weights of a model that was never called, before anything is compiled; whether it was so."""
    if not isinstance(model, keras.layers.Layer) or known_of(model).decoders:
        return False
    # `build` of a subclassed model that was not called leaves its layers as they are.
    if model.built and (anatomy.input_names(model) or all(layer.built for layer in anatomy.walk(model))):
        return False
    if isinstance(model, keras.Sequential):
        model.build((None, None))  # called, it would remember the length of this text as the only one
    else:
        model(ops.convert_to_tensor([token_ids]))
    return True


def choose_decoder(model, source, target, cache="auto", cache_dtype=None):
    """A decoder and None, or the full forward and the reason why there is no cache."""
    if cache is False:
        return full_decoder(model, source, target), None
    decoder, reason, probe = _cached_decoder(model, source, target)
    if reason is None:
        decoder.cache_dtype = cache_dtype  # not before the logits were compared, which it changes a little
        return decoder, None
    if cache is True:
        raise ValueError(f"The model cannot be decoded through a cache: {reason}.")
    return full_decoder(model, source, target, probe), reason


def full_decoder(model, source, target, probe=None):
    """The full forward, which asks for no more than a causal model; `probe` if there is one already."""
    if not isinstance(model, keras.layers.Layer):
        return FullForward(model, source is not None)
    probe = make_probe(model, source, target) if probe is None else probe
    if probe.looks_ahead():
        raise LooksBothWays(
            f"The logits of the model {model.name!r} change with the tokens behind them: it looks both ways, so it "
            "cannot write texts. Decode with a causal model."
        )
    if anatomy.foreign_layers(model):
        _refuse_what_reads_more(model, probe)
    full = probe.full
    full.pads_source = source is None or not probe.sees_source_padding()
    if anatomy.foreign_layers(model) and target.fixed_length is None:
        full.longest = probe.longest
    return full


def _refuse_what_reads_more(model, probe):
    """Refuse a model whose logits are no matter of the tokens of a row up to them: its texts would be others."""
    reasons = {
        "other rows of the batch": probe.mixes_rows,
        "room behind a text, in which it is to grow": probe.reads_length,
    }
    for reason, is_so in reasons.items():
        if is_so():
            raise ValueError(
                f"The logits of the model {model.name!r} change with the {reason}: what it writes would depend on how "
                f"it is computed. One of these layers must be the cause: {_names(anatomy.foreign_layers(model))}"
            )


def _names(layers):
    return ", ".join(sorted({f"{layer.name} ({type(layer).__name__})" for layer in layers}))


def make_probe(model, source, target):
    """A `Probe` of the model."""
    full = FullForward(model, source is not None)
    full.tells_lengths = source is None and anatomy.reason_against_cache(model) is not None
    ids = anatomy.real_token_ids(model) or [0, 1]
    tolerance = 1e-4 if model.compute_dtype == "float32" else 5e-2
    return Probe(full, ids, source, target, tolerance)


def _cached_decoder(model, source, target):
    """A decoder with a cache and None, or None and why it cannot be; and the `Probe`, if one was needed to know."""
    if not isinstance(model, keras.layers.Layer):
        return None, "it is not a Keras model", None
    if anatomy.fixed_length(model) is not None:
        reason = f"its input has the fixed length {anatomy.fixed_length(model)}; declare `keras.Input((None,))`"
        return None, reason, None
    if anatomy.reason_against_cache(model) is not None:
        return None, anatomy.reason_against_cache(model), None
    if source is not None and not anatomy.has_sub_models(model):
        return None, 'its graph has no sub-models called "encoder" and "decoder"', None
    cached = (CachedDecoder if source is None else CachedEncoderDecoder)(model)
    foreign = anatomy.foreign_layers(model)
    if not foreign:
        cached.step = trace_step(cached.step)
        return cached, None, None
    probe = make_probe(model, source, target)
    reason = probe.reason_against_cache(cached)
    if reason is None:
        _refuse_what_reads_more(model, probe)
        return cached, None, probe
    return None, f"{reason}; these may mix positions: {_names(foreign)}", probe


class Known:
    """What was found out about a model, its decoders by `cache` and `cache_dtype`, and its compiled loops.

    A class of its own, into which Keras does not look when it saves the model.
    """

    def __init__(self, model, variables):
        self.variables = variables
        self.source, self.target = anatomy.sides(model)
        self.decoders, self.loops = {}, {}

    def loop(self, key, make):
        """The loop of this key, made at its first use."""
        if key not in self.loops:
            self.loops[key] = make()
        return self.loops[key]


def known_of(model):
    """What is kept about the model, begun anew when its variables are others (after LoRA, int8)."""
    variables = tuple(getattr(model, "variables", ()))
    found = getattr(model, "_decoding", None)
    same = found is not None and len(found.variables) == len(variables)
    if not same or any(a is not b for a, b in zip(found.variables, variables, strict=True)):
        found = Known(model, variables)
        # Past Keras' and torch's attribute tracking: this is no part of the model.
        with contextlib.suppress(AttributeError):  # a bound method, which takes none and is found out about each time
            object.__setattr__(model, "_decoding", found)
    return found
