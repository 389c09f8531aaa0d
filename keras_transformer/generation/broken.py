"""Logits that are no numbers: weights that are broken, or sums that their dtype cannot hold.

Any token could be made of them without a word, so they are noted while a text is written and refused after it.
"""

from keras import ops


def note_broken(loop, logits, is_open, name="is_broken"):
    """The loop, with a note if logits (..., V) that are of use (...) are NaN or +inf; -inf is a banned token."""
    # Not as "not below inf", which TensorFlow's graphs make "inf or above" of: NaN is neither.
    wrong = ops.logical_or(ops.isnan(logits), ops.equal(logits, float("inf")))
    wrong = ops.logical_and(ops.expand_dims(is_open, -1), wrong)
    return {**loop, name: ops.logical_or(loop.get(name, False), ops.any(wrong))}


def note_processed(loop, logits, is_open, rule):
    """The same of what the user's processors made of the logits."""
    return note_broken(loop, logits, is_open, "is_broken_by_processor") if rule.custom else loop


def refuse_broken(loop):
    """Raise if there is a note."""
    if ops.convert_to_numpy(loop["is_broken"]):
        raise ValueError(
            "The model's logits are NaN or infinite, so that no token can be chosen: its weights are broken (by a "
            "training that diverged?), or numbers get too large for its dtype."
        )
    if "is_broken_by_processor" in loop and ops.convert_to_numpy(loop["is_broken_by_processor"]):
        raise ValueError(
            "`logits_processors` made logits NaN or +inf, so that no token can be chosen. To force a token, set all "
            "others to -inf; to ban one, set it to -inf, which times 0 would be NaN."
        )
