"""Learned positions on a grid, carried over to another grid.

Letters: h and w rows and columns, D features.

Source: Dosovitskiy et al. 2020, section 3.2, "Fine-tuning and higher resolution" (https://arxiv.org/abs/2010.11929);
the kernel: Keys 1981, "Cubic Convolution Interpolation for Digital Image Processing".
"""

import numpy as np
from keras import ops

A = -0.75  # the kernel's free parameter: PyTorch's and OpenCV's choice, where TensorFlow and Pillow have -0.5


def interpolate_positions(table, grid, new_grid, num_prefix_tokens=0):
    """Resize a table of grid positions, bicubically.

    It equals `torch.nn.functional.interpolate(mode="bicubic", align_corners=False)`: a place is the middle of its
    cell, and beyond the edge the edge goes on.

    Args:
        table: (num_prefix_tokens + h * w, D), the grid row by row.
        grid: (h, w) of the table.
        new_grid: (h, w) of the result. The same grid gives the same numbers, bit by bit.
        num_prefix_tokens: rows in front of the grid, of class tokens; they are not touched.

    Returns:
        (num_prefix_tokens + new h * new w, D), in the dtype of the table; computed in float32.

    Example: `interpolate_positions(table, (14, 14), (24, 24), num_prefix_tokens=1)  # (197, D) -> (577, D)`
    """
    table = ops.convert_to_tensor(table)
    (rows, columns), (new_rows, new_columns) = grid, new_grid
    if table.shape[0] != num_prefix_tokens + rows * columns:
        raise ValueError(
            f"`table` must have num_prefix_tokens + h * w = {num_prefix_tokens} + {rows} * {columns} rows. "
            f"Received: table.shape={tuple(table.shape)}"
        )
    if tuple(grid) == tuple(new_grid):
        return table
    cells = ops.reshape(ops.cast(table[num_prefix_tokens:], "float32"), (rows, columns, -1))
    down, right = _cubic_weights(rows, new_rows), _cubic_weights(columns, new_columns)
    cells = ops.einsum("yh,xw,hwd->yxd", down, right, cells)
    cells = ops.reshape(cells, (new_rows * new_columns, -1))
    return ops.concatenate([table[:num_prefix_tokens], ops.cast(cells, table.dtype)], axis=0)


def _cubic_weights(size, new_size):
    """How much each of `size` places has in each of `new_size` (new_size, size)."""
    weights = np.zeros((new_size, size))
    centres = (np.arange(new_size) + 0.5) * size / new_size - 0.5
    for tap in range(-1, 3):
        places = np.floor(centres).astype(int) + tap
        np.add.at(weights, (np.arange(new_size), places.clip(0, size - 1)), _cubic(np.abs(centres - places)))
    return ops.convert_to_tensor(weights, "float32")


def _cubic(distance):
    near = (A + 2) * distance**3 - (A + 3) * distance**2 + 1
    far = A * distance**3 - 5 * A * distance**2 + 8 * A * distance - 4 * A
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
