"""Sinusoidal positions.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5 (https://arxiv.org/abs/1706.03762).
"""

import numpy as np
from keras import ops

MAX_WAVELENGTH = 10000.0
LAYOUTS = ("interleaved", "half")


def sinusoidal_positions(positions, dim, max_wavelength=MAX_WAVELENGTH, layout="interleaved"):
    """Encode positions (...) as float32 vectors (..., dim): even elements are sines, odd elements cosines.

    Element i of position p is the sine or cosine of `p / max_wavelength ** (2 * (i // 2) / dim)`. `dim` may be odd.
    With the layout `"half"` the same numbers stand in another order: first all sines, then all cosines (Marian).
    The angles are float32 whatever the dtype policy: in bfloat16 most positions above 256 would coincide.

    Example: `sinusoidal_positions([0, 1], 5)[1]` is `[0.8415, 0.5403, 0.0251, 0.9997, 0.0006]`.
    """
    element = np.arange(dim)
    if layout == "half":
        element = np.concatenate([element[::2], element[1::2]])
    rates = max_wavelength ** (-2.0 * (element // 2) / dim)
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * ops.convert_to_tensor(rates, "float32")
    return ops.where(element % 2 == 0, ops.sin(angles), ops.cos(angles))
