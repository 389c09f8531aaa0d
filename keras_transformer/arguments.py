"""Checks of numbers given as arguments, for all parts of the package."""

import math
import numbers


def check_size(**arguments):
    """Refuse anything but positive integers; NumPy's are integers too."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value <= 0:
            raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}")


def check_count(least, **arguments):
    """Refuse anything but integers of at least so much."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
            raise ValueError(f"`{name}` must be an integer of {least} or more. Received: {name}={value!r}")


def check_id(**arguments):
    """Refuse anything but integers that an int32 array holds."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not -(2**31) <= value < 2**31:
            raise ValueError(f"`{name}` must be an integer id. Received: {name}={value!r}")


def check_positive_number(**arguments):
    """Refuse anything but finite numbers above 0."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value < math.inf:
            raise ValueError(f"`{name}` must be a finite number above 0. Received: {name}={value!r}")
