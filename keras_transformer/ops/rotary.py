"""Rotary positions: pairs of features are turned by an angle that grows with the position.

Letters: B batch, T length, N heads, H head dim, R rotated part of it, R / 2 pairs.

Source: Su et al. 2021, "RoFormer" (https://arxiv.org/abs/2104.09864). Longer contexts: "linear", Chen et al. 2023
(https://arxiv.org/abs/2306.15595); "dynamic" and "yarn", Peng et al. 2023 (https://arxiv.org/abs/2309.00071); "llama3",
Grattafiori et al. 2024 (https://arxiv.org/abs/2407.21783).
"""

import math
from numbers import Real

import numpy as np
from keras import ops

LAYOUTS = ("half", "interleaved")
LENGTH = "original_max_position_embeddings"
# The fields of each `rope_type`: those that must be there, and those that may.
FIELDS = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor", LENGTH), ()),
    "yarn": (
        ("factor", LENGTH),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", LENGTH), ()),
}


def rotate(x, positions, frequencies, factor=1.0, layout="half"):
    """Turn the first R features of each head by the angle `positions * frequencies`.

    Args:
        x: (B, T, N, H).
        positions: int32 (B or 1, T).
        frequencies: float32 (R / 2,) or (B, 1, R / 2), radians per position of each pair.
        factor: on what is turned (YaRN's temperature).
        layout: `"half"`, feature i is paired with i + R / 2, or `"interleaved"`, 2 i with 2 i + 1.

    Returns:
        (B, T, N, H) in the dtype of x. The angles and the turning are float32.

    Example: `rotate([[[[1., 0., 0., 0.]]]], [[1]], [1., 0.01])` is `[[[[cos(1), 0., sin(1), 0.]]]]`.
    """
    x = ops.convert_to_tensor(x)
    frequencies = ops.convert_to_tensor(frequencies, "float32")
    pairs = frequencies.shape[-1]
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * frequencies  # (B, T, R / 2)
    cos, sin = (ops.expand_dims(function(angles) * factor, 2) for function in (ops.cos, ops.sin))
    whole = ops.cast(x, "float32")
    leading = ops.shape(x)[:-1]
    if layout == "half":
        first, second = whole[..., :pairs], whole[..., pairs : 2 * pairs]
    else:
        split = ops.reshape(whole[..., : 2 * pairs], (*leading, pairs, 2))
        first, second = split[..., 0], split[..., 1]
    turned = first * cos - second * sin, second * cos + first * sin
    if layout == "half":
        parts = list(turned)
    else:
        parts = [ops.reshape(ops.stack(turned, axis=-1), (*leading, 2 * pairs))]
    if 2 * pairs < x.shape[-1]:
        parts.append(whole[..., 2 * pairs :])
    return ops.cast(ops.concatenate(parts, axis=-1), x.dtype)


def rotary_frequencies(dim, base=10000.0, scaling=None, length=None):
    """Radians per position of each of `dim / 2` pairs, and the factor on what is turned.

    Args:
        dim: R, even.
        base: pair i turns by `base ** (-2 i / dim)` per position.
        scaling: what `check_scaling` gives, or None.
        length: (B,), tokens of each row, for `"dynamic"`.

    Returns:
        float32 (R / 2,), for `"dynamic"` (B, 1, R / 2); and a float.
    """
    exponents = np.arange(0, dim, 2) / dim
    frequencies, kind, factor = base**-exponents, scaling and scaling["rope_type"], 1.0
    if kind == "linear":
        frequencies = frequencies / scaling["factor"]
    elif kind == "llama3":
        frequencies = _llama3(frequencies, scaling)
    elif kind == "yarn":
        frequencies, factor = _yarn(frequencies, dim, base, scaling), _yarn_factor(scaling)
    elif kind == "dynamic":
        return _dynamic(frequencies, exponents, dim, scaling, length), factor
    return frequencies.astype("float32"), factor


def _dynamic(frequencies, exponents, dim, scaling, length):
    """The base grows with the row: `base * stretch ** (dim / (dim - 2))`, so that the slowest pair turns no further."""
    length = ops.maximum(ops.cast(length, "float32") / scaling[LENGTH], 1.0)
    stretch = scaling["factor"] * length - (scaling["factor"] - 1)
    powers = ops.convert_to_tensor(-exponents * dim / max(dim - 2, 1), "float32")
    shrunk = ops.exp(ops.expand_dims(ops.log(stretch), -1) * powers)  # (B, R / 2)
    return ops.expand_dims(shrunk * ops.convert_to_tensor(frequencies, "float32"), 1)


def _llama3(frequencies, scaling):
    """Fast pairs stay, slow ones are slowed down by the factor, those between them in part."""
    turns = scaling[LENGTH] * frequencies / (2 * math.pi)  # in the original context
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (kept + (1 - kept) / scaling["factor"])


def _yarn(frequencies, dim, base, scaling):
    """As `_llama3`, but the share that stays falls linearly with the index of the pair."""

    def pair_with(turns):
        return dim * math.log(scaling[LENGTH] / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_with(scaling.get("beta_fast", 32)), pair_with(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = high + 1e-3 if low == high else high
    kept = 1 - np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    return frequencies * (kept + (1 - kept) / scaling["factor"])


def _yarn_factor(scaling):
    if "attention_factor" in scaling:
        return float(scaling["attention_factor"])

    def temperature(mscale):
        return 0.1 * mscale * math.log(scaling["factor"]) + 1 if scaling["factor"] > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return temperature(scaling["mscale"]) / temperature(scaling["mscale_all_dim"])
    return temperature(1.0)


def check_scaling(scaling, base=10000.0, fraction=1.0):
    """The scaling in one spelling, None for none; refuses what this module does not compute.

    Args:
        scaling: dict as `rope_scaling` or `rope_parameters` of `transformers`; fields that are None are left out. It
            may repeat `rope_theta` and `partial_rotary_factor`, which are `base` and `fraction`.

    Raises:
        ValueError: an unknown type, a field that the type does not have or is missing, or a value that is none.
    """
    if scaling is None:
        return None
    if not isinstance(scaling, dict):
        raise ValueError(f"`scaling` must be a dict with a `rope_type`. Received: scaling={scaling!r}")
    given = {name: value for name, value in scaling.items() if value is not None}
    kind = given.pop("rope_type", given.get("type", "default"))
    if given.pop("type", kind) != kind or kind not in FIELDS:
        raise ValueError(f"`rope_type` must be one of {', '.join(map(repr, FIELDS))}. Received: scaling={scaling!r}")
    for name, argument, value in (("rope_theta", "base", base), ("partial_rotary_factor", "fraction", fraction)):
        if given.pop(name, value) != value:
            raise ValueError(f"`{name}` in `scaling` is not `{argument}`={value!r}. Received: scaling={scaling!r}")
    required, optional = FIELDS[kind]
    missing, unknown = set(required) - set(given), set(given) - {*required, *optional}
    if missing or unknown:
        raise ValueError(
            f"`scaling` of the type {kind!r} needs the fields {list(required)} and may have {list(optional)}. "
            f"Missing: {sorted(missing)}, unknown: {sorted(unknown)}, received: scaling={scaling!r}"
        )
    for name, value in given.items():
        is_right = isinstance(value, bool) if name == "truncate" else _is_positive(value) or _may_be_zero(name, value)
        if not is_right:
            raise ValueError(f"`{name}` in `scaling` must be above 0 (`truncate` a bool). Received: {value!r}")
    if kind == "llama3" and given["low_freq_factor"] >= given["high_freq_factor"]:
        raise ValueError(f"`low_freq_factor` must be below `high_freq_factor`. Received: scaling={scaling!r}")
    return None if kind == "default" else {"rope_type": kind, **given}


def _is_positive(value):
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < value < math.inf


def _may_be_zero(name, value):
    return name.startswith("mscale") and value == 0  # which is to say that there is none
