"""The statistics can be refuted: against exact cases, theory and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kvshare_research.metrics import statistics as s

positive = st.lists(st.floats(1.0, 1e7), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(values=positive, seeds=st.integers(1, 4))
def test_interval_contains_the_median_and_lies_within_the_sample(values: list[float], seeds: int) -> None:
    groups = [i % seeds for i in range(len(values))]
    got = s.median(values, groups)
    assert got.value == pytest.approx(np.median(values))
    assert min(values) <= got.low <= got.value <= got.high <= max(values)
    assert got == s.median(values, groups)


@settings(max_examples=30, deadline=None)
@given(values=positive)
def test_paired_comparison_of_identical_columns_is_exactly_nothing(values: list[float]) -> None:
    assert s.saved_share(values, values).value == s.saved_share(values, values).high == 0.0
    assert s.paired_difference(values, values).low == s.paired_difference(values, values).high == 0.0
    ratio = s.ratio_of_medians(values, values)
    assert ratio.low == ratio.value == ratio.high == 1.0


def test_pairing_is_kept_in_the_resamples() -> None:
    base = np.random.default_rng(3).lognormal(10.0, 1.5, 60)
    got = s.ratio_of_medians(0.5 * base, base)
    assert got.low == pytest.approx(0.5)
    assert got.high == pytest.approx(0.5)
    unpaired = s.ratio_of_medians(0.5 * base[::-1], base)
    assert unpaired.high - unpaired.low > 0.1


def test_interval_agrees_with_scipy_and_covers() -> None:
    rng = np.random.default_rng(5)
    values = rng.exponential(1.0, 80)
    ours = s.median(values)
    theirs = stats.bootstrap(
        (values,), np.median, method="percentile", n_resamples=4000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.06)
    assert ours.high == pytest.approx(theirs.high, abs=0.06)
    hits = 0
    for _ in range(60):
        got = s.median(rng.exponential(1.0, 40))
        hits += got.low <= math.log(2.0) <= got.high
    assert hits >= 51  # P(fewer | 95 %) < 0.002


def test_seeds_that_disagree_widen_the_interval() -> None:
    values = np.concatenate([np.full(30, 10.0), np.full(30, 20.0), np.full(30, 30.0)])
    noise = np.random.default_rng(0).normal(0, 0.1, 90)
    as_one = s.median(values + noise)
    by_seed = s.median(values + noise, np.repeat([1, 2, 3], 30))
    assert by_seed.low < 11.0 < as_one.low
    assert as_one.high < 29.0 < by_seed.high


@pytest.mark.parametrize(("count", "p95", "p99"), [(99, False, False), (100, True, False), (500, True, True)])
def test_tail_quantiles_need_samples(count: int, p95: bool, p99: bool) -> None:
    got = s.quantiles(np.arange(count))
    assert (got.p95 is not None, got.p99 is not None) == (p95, p99)


@pytest.mark.parametrize("values", [[], [math.nan], [math.nan, math.inf]])
def test_nothing_gives_unknown(values: list[float]) -> None:
    assert s.quantiles(values).samples == 0
    assert not s.median(values).known
    assert not s.saved_share(values, values).known
    assert s.percentage_error(values, values).samples == 0


def test_zero_baseline_is_unknown_not_an_error() -> None:
    assert not s.ratio_of_medians([1.0, 2.0], [0.0, 0.0]).known


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20))
def test_jain_is_between_one_over_n_and_one(values: list[float]) -> None:
    index = s.jain_index(values)
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert s.jain_index([5.0] * len(values)) == pytest.approx(1.0)


def queued(rho: float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1.0, count))
    service = rng.exponential(rho, count)
    wait, free = np.zeros(count), 0.0
    for i in range(count):
        wait[i] = max(0.0, free - arrival[i])
        free = arrival[i] + wait[i] + service[i]
    return arrival, wait, arrival + wait + service


def test_saturation_tells_growing_from_stable_queues() -> None:
    flagged = {
        rho: sum(s.saturation(*queued(rho, 200, seed), rho).saturated for seed in range(20)) for rho in (0.3, 0.6, 1.5)
    }
    assert flagged[0.3] <= 1
    assert flagged[0.6] <= 5
    assert flagged[1.5] == 20
    assert not s.saturation([1.0], [0.0], [2.0], 1.0).saturated


def test_percentage_error_counts_only_what_was_predicted() -> None:
    got = s.percentage_error([90.0, 0.0, 120.0], [100.0, 50.0, 100.0])
    assert got.samples == 2
    assert got.median == pytest.approx(0.15)
    assert got.mean == pytest.approx(0.15)


def _points(factor: float, rates: tuple[float, ...]) -> list[s.RatePoint]:
    """M/M/1: sojourn times are exponential with mean 1 / (mu - rate)."""
    uniform = (np.arange(400) + 0.5) / 400
    return [
        s.RatePoint(
            rate_per_s=rate, ttft_us=tuple(-np.log(1 - uniform) / (factor - rate)), groups=tuple([0] * len(uniform))
        )
        for rate in rates
    ]


def test_throughput_at_slo_matches_the_queue_formula() -> None:
    rates = tuple(np.arange(0.1, 0.96, 0.05))
    base = s.throughput_at_slo(_points(1.0, rates), math.log(2.0) * 5, 0.5)
    ours = s.throughput_at_slo(_points(2.0, tuple(np.arange(0.2, 1.96, 0.05))), math.log(2.0) * 5, 0.5)
    assert base.rate_per_s.value == pytest.approx(0.8, abs=0.02)  # median ln2/(1-x) = 5 ln2
    ratio = s.throughput_ratio(ours, base)
    assert ratio.value == pytest.approx(1.8 / 0.8, abs=0.06)
    assert ratio.low <= ratio.value <= ratio.high


def test_throughput_outside_the_tested_rates_says_so() -> None:
    ours = s.throughput_at_slo(_points(9.0, (0.1, 0.2)), 5.0, 0.5)
    base = s.throughput_at_slo(_points(0.3, (0.1, 0.2)), 5.0, 0.5)
    assert ours.at_least
    assert base.bracketed
    assert s.throughput_ratio(ours, base).high == math.inf
    none = s.throughput_at_slo(_points(0.3, (0.1, 0.2)), 1e-3, 0.5)
    assert none.at_most
    assert not s.throughput_ratio(ours, none).known
    assert not s.throughput_at_slo([], 1.0, 0.5).rate_per_s.known


def test_rejected_requests_miss_the_objective() -> None:
    point = s.RatePoint(rate_per_s=1.0, ttft_us=(1.0, math.inf, math.inf), groups=(0, 0, 0))
    assert s.throughput_at_slo([point], 10.0, 0.5).at_most
    assert s.goodput_per_s(point.ttft_us, 10.0, 2e6) == 0.5
