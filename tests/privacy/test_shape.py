"""Held back, a hit takes as long as the miss; what is not a group's is not held back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core.costing import PS_PER_US, PrefillCoefficients, prefill_ps
from kvshare_research.privacy.shape import held_us

COEFFICIENTS = PrefillCoefficients(5_000 * PS_PER_US, 200 * PS_PER_US, 2 * PS_PER_US, 1_000, 500)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(1, 400))
@settings(max_examples=80, deadline=None)
def test_a_group_hit_takes_as_long_as_its_miss(own: int, group: int, rest: int) -> None:
    prompt, reused = own + group + rest, own + group
    hit_us = prefill_ps(COEFFICIENTS, rest, reused) // PS_PER_US
    miss_us = prefill_ps(COEFFICIENTS, group + rest, own) // PS_PER_US
    assert abs(hit_us + held_us(COEFFICIENTS, prompt, reused, group) - miss_us) <= 1
    assert held_us(COEFFICIENTS, prompt, reused, 0) == 0


def test_more_reused_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match="5 of 4 reused"):
        held_us(COEFFICIENTS, 9, 4, 5)
