"""Under 16-bit policies whole models stay finite, ignore padding and agree with float32 (B15)."""

import numpy as np
import pytest

from tests.invariants.table import EVERY_LAYER, call, named
from tests.invariants.test_compile_mode import padded_inputs

# One with weights in float32 and one without, one that overflows and one that rounds: any fault shows in either of two,
# and only one model goes through all four.
POLICIES = ("mixed_float16", "bfloat16")
OTHER_POLICIES = ("float16", "mixed_bfloat16")
CASES = [(family, policy) for family in EVERY_LAYER for policy in POLICIES]
CASES += [(family, policy) for family in named("transformer, norm first") for policy in OTHER_POLICIES]
RELATIVE_STEP = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # between neighbouring numbers


def as_list(inputs):
    return inputs if isinstance(inputs, list) else [inputs]


@pytest.mark.parametrize("family, policy", CASES, ids=str)
def test_sixteen_bits(family, policy):
    inputs = as_list(padded_inputs(family))
    real = inputs[-1] != 0
    expected = call(family.model, inputs)
    outputs = call(family.new(dtype=policy), inputs).astype("float32")
    assert np.isfinite(outputs).all()
    error = abs(outputs - expected)[real]
    # a logit is a sum over some dozen roundings of numbers as large as the largest
    limit = 8 * RELATIVE_STEP[policy.removeprefix("mixed_")] * abs(expected[real]).max()
    assert error.max() <= limit, (error.max(), limit)
