"""The contest between policies: what its figures are, and that every trace of it can be set up."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from experiments.best_baseline.contest import ALL_WAYS, FIGURES, Played, gain_share, ratio
from experiments.best_baseline.entrants import TRIED
from experiments.best_baseline.further import TRACES
from experiments.fleet import setting
from kvshare_research.core.nouns import Outcome, Status
from kvshare_research.study.settings import choice


def played(policy: str, slower: float, seeds: int = 3, count: int = 200) -> Played:
    """The same drawn times of every seed, `slower` times as long."""
    chance = np.random.default_rng(7)
    done = Outcome(request_id=0, tenant_id=1, application="", status=Status.DONE, prompt_tokens=9, computed_tokens=9)
    rows = []
    for _ in range(seeds):
        drawn_us = (chance.exponential(1e6, count) * slower).astype(int).tolist()
        rows.append(
            tuple(structs.replace(done, request_id=i, ttft_us=t, end_to_end_us=2 * t) for i, t in enumerate(drawn_us))
        )
    return Played(policy=policy, outcomes=tuple(rows), moved_bytes=0, evicted_blocks=0, troubles=("",) * seeds)


@pytest.mark.parametrize(("what", "percent"), FIGURES)
def test_a_policy_half_as_quick_is_told_so_with_an_interval_around_it(what: str, percent: int) -> None:
    """Paired: the same requests slowed down alike leave no doubt; other draws leave some, around the truth."""
    one, twice = played("a", 1.0), played("b", 2.0)
    told = ratio(twice, one, what, percent)
    assert told.low == pytest.approx(2.0, abs=1e-3)
    assert told.high == pytest.approx(2.0, abs=1e-3)
    shuffled = replace(twice, outcomes=tuple(rows[::-1] for rows in twice.outcomes))
    told = ratio(shuffled, one, what, percent)
    assert told.low < 2.0 < told.high


def test_a_request_that_was_not_served_never_came() -> None:
    one = played("a", 1.0, seeds=1, count=20)
    lost = replace(one, outcomes=((structs.replace(one.outcomes[0][0], status=Status.REJECTED), *one.outcomes[0][1:]),))
    assert lost.percentile_ms("ttft_us", 99) == np.inf
    assert lost.percentile_ms("ttft_us", 50) >= one.percentile_ms("ttft_us", 50)


def test_the_share_of_the_gain_is_one_for_the_bound_and_none_for_recomputing() -> None:
    found = {name: played(name, s) for name, s in (("recompute_always", 3.0), ("bound", 1.0), ("cheapest", 2.0))}
    references = (found["recompute_always"], found["bound"])
    for name, whole in (("recompute_always", 0.0), ("bound", 1.0), ("cheapest", 0.5)):
        share = gain_share(found[name], *references)
        assert (share.low, share.value, share.high) == pytest.approx((whole, whole, whole), abs=1e-3)


def test_every_setting_of_the_contest_is_a_configuration() -> None:
    for trace in TRACES.values():
        setting(*trace.overrides, ALL_WAYS)
    for name, (key, values) in TRIED.items():
        assert choice("selector", name)[key] not in values


def test_a_trace_that_is_none_is_named_with_the_nearest() -> None:
    command = (sys.executable, "-m", "experiments.best_baseline.further", "mooncak")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr == "error: there is no workload `mooncak`; did you mean `mooncake`?\n"
