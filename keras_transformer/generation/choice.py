"""Which way a model is decoded: through a cache where that gives the full forward's logits, else in full."""

import keras
from keras import ops

from keras_transformer.generation import anatomy
from keras_transformer.generation.decoders import CachedDecoder, CachedEncoderDecoder, FullForward
from keras_transformer.generation.probe import Probe
from keras_transformer.ops.cache import LooksBothWays


def build(model, token_ids):
    """Make the weights of a model that was never called, before anything is compiled; whether it was so."""
    if not isinstance(model, keras.layers.Layer) or model.built:
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
    decoder, reason = _cached_decoder(model, source, target)
    if reason is None:
        decoder.cache_dtype = cache_dtype  # not before the logits were compared, which it changes a little
        return decoder, None
    if cache is True:
        raise ValueError(f"The model cannot be decoded through a cache: {reason}.")
    return full_decoder(model, source, target), reason


def full_decoder(model, source, target):
    """The full forward, which asks for no more than a causal model."""
    full = FullForward(model, source is not None)
    if isinstance(model, keras.layers.Layer) and anatomy.fixed_length(model) is None:
        probe = make_probe(full, target)
        if probe.looks_ahead():
            raise LooksBothWays(
                f"The logits of the model {model.name!r} change with the tokens behind them: it looks both ways, so it "
                "cannot write texts. Decode with a causal model."
            )
        full.pads_source = source is None or not probe.sees_source_padding()
    return full


def make_probe(full, target):
    """A `Probe` of the decoder's model."""
    ids = anatomy.real_token_ids(full.model) or [0, 1]
    tolerance = 1e-4 if full.model.compute_dtype == "float32" else 5e-2
    return Probe(full, ids, target.masked_token_id or 0, tolerance)


def _cached_decoder(model, source, target):
    """A decoder with a cache and None, or None and why it cannot be."""
    if not isinstance(model, keras.layers.Layer):
        return None, "it is not a Keras model"
    if anatomy.fixed_length(model) is not None:
        return None, f"its input has the fixed length {anatomy.fixed_length(model)}; declare `keras.Input((None,))`"
    if source is not None and not anatomy.has_sub_models(model):
        return None, 'its graph has no sub-models called "encoder" and "decoder"'
    cached = (CachedDecoder if source is None else CachedEncoderDecoder)(model)
    foreign = anatomy.foreign_layers(model)
    if not foreign:
        return cached, None
    reason = make_probe(FullForward(model, source is not None), target).reason_against_cache(cached)
    if reason is None:
        return cached, None
    names = ", ".join(sorted({f"{layer.name} ({type(layer).__name__})" for layer in foreign}))
    return None, f"{reason}; not of this library and maybe mixing positions: {names}"


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
        object.__setattr__(model, "_decoding", found)
    return found
