"""Warm-up and saturation: found where they are, in series and in simulated runs, and not where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from kvshare_research.core.nouns import Outcome
from kvshare_research.metrics.steady import mser5, steadiness
from tests.metrics.synthetic import make_case
from tests.metrics.test_statistics import queued


def _outcomes(rho: float, count: int, seed: int, slow: int = 0) -> list[Outcome]:
    """A single queue with exponential gaps (mean 1 s) and services (mean rho); the first `slow` take 5 s longer."""
    template = make_case(count=1).outcomes[0]
    arrival, wait, end = queued(rho, count, seed)
    rows = zip(arrival, wait, end, strict=True)
    return [
        replace(
            template, request_id=i, arrival_us=int(1e6 * at), queue_us=int(1e6 * queue), decode_us=0,
            ttft_us=int(1e6 * (done - at)) + 5_000_000 * (i < slow),
            end_to_end_us=int(1e6 * (done - at)) + 5_000_000 * (i < slow),
        )
        for i, (at, queue, done) in enumerate(rows)
    ]  # fmt: skip


def test_mser5_cuts_at_a_step_and_cuts_nothing_where_there_is_none() -> None:
    rng = np.random.default_rng(0)
    for height in (2.0, 5.0, -5.0):
        cut = mser5(np.r_[rng.normal(height, 0.5, 100), rng.normal(0, 0.5, 900)])
        assert cut is not None
        assert 100 <= cut <= 130
    assert mser5(np.full(300, 7.0)) == 0
    assert mser5(np.r_[np.full(100, 9.0), np.full(200, 7.0)]) == 100
    assert mser5(np.linspace(0.0, 1.0, 1_000)) is None  # never steady
    assert mser5([]) == mser5(np.arange(99.0)) == 0


@pytest.mark.parametrize("count", [200, 1_000])
def test_a_warm_up_that_matters_is_told_unless_it_was_left_out(count: int) -> None:
    told = [steadiness(_outcomes(0.5, count, seed, slow=count // 4), left_out=0) for seed in range(20)]
    assert sum(s is not None and s.matters for s in told) >= 19
    left = [steadiness(_outcomes(0.5, count, seed, slow=count // 4), left_out=count // 4) for seed in range(20)]
    none = [steadiness(_outcomes(0.5, count, seed), left_out=count // 10) for seed in range(20)]
    assert sum(s is not None and s.matters for s in left) <= 3
    assert sum(s is not None and s.matters for s in none) <= 3


def test_an_overloaded_queue_is_saturated_and_one_at_half_load_is_not() -> None:
    states = {
        rho: [s.trouble if (s := steadiness(_outcomes(rho, 200, seed), left_out=20)) else None for seed in range(20)]
        for rho in (0.5, 1.5)
    }
    assert states[1.5] == ["saturated"] * 20
    assert states[0.5].count("saturated") <= 1
    assert states[0.5].count("") >= 17


def test_requests_that_never_meet_are_idle_whatever_the_case_is_called() -> None:
    rows = make_case().outcomes
    assert steadiness(rows) is None
    met = [replace(o, arrival_us=o.arrival_us // 20) for o in rows]
    assert steadiness(met) is not None
    assert steadiness(()) is None
