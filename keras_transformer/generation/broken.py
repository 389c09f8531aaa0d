"""Logits that are no numbers: weights that are broken, or sums that their dtype cannot hold.

Any token could be made of them without a word, so they are noted while a text is written and refused after it.
"""

from keras import ops


def note_broken(loop, logits, is_open):
    """The loop, with a note if logits (B, V) of a row that is open (B,) are NaN or +inf; -inf is a banned token."""
    wrong = ops.logical_and(ops.expand_dims(is_open, -1), ops.logical_not(logits < float("inf")))
    return {**loop, "is_broken": ops.logical_or(loop.get("is_broken", False), ops.any(wrong))}


def refuse_broken(loop):
    """Raise if there is a note."""
    if ops.convert_to_numpy(loop["is_broken"]):
        raise ValueError(
            "The model's logits are NaN or infinite, so that no token can be chosen: its weights are broken (by a "
            "training that diverged?), or numbers get too large for its dtype."
        )
