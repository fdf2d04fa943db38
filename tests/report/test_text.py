"""Numbers read as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvshare_research.metrics.statistics import UNKNOWN, Estimate
from kvshare_research.report import text


@given(value=st.floats(0.001, 999_999.0))
def test_numbers_keep_three_significant_digits(value: float) -> None:
    assert float(text.number(value).replace(",", "")) == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (math.nan, "–"), (math.inf, "∞"), (0.0, "0"), (1e-7, "1.00e-07"), (1234.5, "1,234")],
)
def test_odd_numbers(value: float | None, shown: str) -> None:
    assert text.number(value) == shown


def test_intervals_need_samples() -> None:
    assert text.duration(Estimate(2000.0, 1000.0, 3000.0, 40)) == "2.00 [1.00, 3.00]"
    assert text.duration(Estimate(2000.0, 1000.0, 3000.0, 3)) == "2.00"
    assert text.duration(UNKNOWN) == text.percent_estimate(None) == text.factor(UNKNOWN) == "–"
    assert text.percent_estimate(Estimate(0.42, 0.39, 0.45, 40)) == "42 % [39, 45]"
    assert text.percent(0.0004) == "0.04 %"


@pytest.mark.parametrize(
    ("times_us", "shown"), [((1e8, None), "100,000"), ((1e8 + 1, 5.0), "100"), ((math.nan,), "100,000")]
)
def test_times_above_a_hundred_thousand_ms_are_told_in_seconds(times_us: tuple[float, ...], shown: str) -> None:
    unit = text.unit_for(times_us)
    assert text.duration(Estimate(1e8, 1e8, 1e8, 3), unit) == shown
    assert unit.name == ("s" if shown == "100" else "ms")
