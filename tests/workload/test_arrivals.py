"""Arrival times: the dialled rate, drawn from the seed alone."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import strategies as st
from scipy import stats

from kvshare_research.core.errors import ConfigError
from kvshare_research.workload.arrivals import Poisson

from .kit import given, spec


@pytest.mark.parametrize(("utilisation", "workers", "service_us"), [(0.3, 2, 640_000), (0.9, 8, 1_500), (1.5, 1, 9e6)])
def test_gaps_are_exponential_at_the_dialled_rate(utilisation, workers, service_us):
    plan = Poisson(utilisation_ratio=utilisation).plan(20_000, worker_count=workers, service_us=service_us, seed=3)
    gaps = np.diff(plan.times_us)
    mean_us = service_us / (utilisation * workers)
    assert np.mean(gaps) == pytest.approx(mean_us, rel=0.03)
    # Whole microseconds shift the law by at most one of them, far below what 20,000 samples resolve here.
    assert stats.kstest(gaps, "expon", args=(0, mean_us)).pvalue > 0.01
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03


@forall(seed=st.integers(0, 2**31), count=st.integers(0, 200), more=st.integers(0, 50))
def test_times_ascend_and_more_requests_begin_alike(seed, count, more):
    def times(n: int) -> tuple[int, ...]:
        return Poisson(utilisation_ratio=0.5).plan(n, worker_count=2, service_us=1e5, seed=seed).times_us

    assert list(times(count)) == sorted(times(count))
    assert times(count + more)[:count] == times(count)
    assert all(t >= 0 for t in times(count))


def test_utilisation_only_stretches_time():
    half = Poisson(utilisation_ratio=0.5).plan(100, worker_count=2, service_us=1e5, seed=1).times_us
    full = Poisson(utilisation_ratio=1.0).plan(100, worker_count=2, service_us=1e5, seed=1).times_us
    assert all(abs(2 * b - a) <= 2 for a, b in zip(half, full, strict=True))
    other = Poisson(utilisation_ratio=0.5).plan(100, worker_count=2, service_us=1e5, seed=2).times_us
    assert other != half


def test_no_policy_can_reach_the_times():
    # The whole input of a plan is in its signature: nothing of tenancy, selector or retention is among it.
    assert list(inspect.signature(Poisson.plan).parameters) == [
        "self", "request_count", "worker_count", "service_us", "seed",
    ]  # fmt: skip


def test_timed_prompts_keep_everything_but_the_time():
    items = spec(request_count=6).make(given())
    plan = Poisson(utilisation_ratio=0.5).plan(6, worker_count=2, service_us=1e5, seed=1)
    timed = plan.timed(items)
    assert [i.request.arrival_us for i in timed] == list(plan.times_us)
    assert [i.tokens is j.tokens for i, j in zip(items, timed, strict=True)] == [True] * 6
    assert all(i.request.arrival_us == 0 for i in items)
    with pytest.raises(ValueError, match="zip"):
        plan.timed(items[:5])


@pytest.mark.parametrize("utilisation", [0.0, -1.0, float("inf"), float("nan")])
def test_utilisation_is_a_positive_number(utilisation):
    with pytest.raises(ConfigError) as caught:
        Poisson(utilisation_ratio=utilisation)
    assert str(caught.value) == f"`utilisation_ratio` is `{utilisation}`, expected a number above 0"


def test_service_time_and_workers_are_positive():
    with pytest.raises(ConfigError) as caught:
        Poisson(utilisation_ratio=1.0).plan(3, worker_count=0, service_us=0, seed=1)
    assert str(caught.value) == (
        "arrivals for 3 requests, 0 workers and a service time of 0 us, expected at least 0 requests, 1 worker and a "
        "service time above 0 us"
    )
