"""Verdicts on the note's table: each kind can be reached, and only by its numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kvshare_research.metrics.statistics import UNKNOWN, Estimate
from kvshare_research.metrics.summary import summarise
from kvshare_research.metrics.verdict import CLAIMS, Verdict, bound_violations, judge, overlap_table, slo_rows

from .synthetic import make_case


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.45, 0.55, Verdict.HOLDS),
        (0.40, 0.60, Verdict.HOLDS),
        (0.10, 0.39, Verdict.FAILS),
        (0.61, 0.70, Verdict.FAILS),
        (0.35, 0.45, Verdict.UNDECIDED),
        (0.50, math.inf, Verdict.UNDECIDED),
    ],
)
def test_judge(low: float, high: float, verdict: Verdict) -> None:
    assert judge((0.40, 0.60), Estimate(low, low, high, 30)) is verdict


def test_too_few_samples_decide_nothing() -> None:
    assert judge((0.4, 0.6), Estimate(0.5, 0.5, 0.5, 2)) is Verdict.UNDECIDED
    assert judge((0.4, 0.6), UNKNOWN) is Verdict.NOT_RUN
    assert judge((0.4, 0.6), None) is Verdict.NOT_RUN


def test_thirty_percent_overlap_idle_cannot_hold() -> None:
    cases = [make_case(s, overlap=0.3, noise=0.0) for s in ("recompute_always", "cheapest")]
    cell = next(c for c in overlap_table(cases) if c.quantity == "prefill, idle" and c.overlap == 0.3)
    assert cell.verdict is Verdict.FAILS
    assert cell.side == "below"
    assert not bound_violations(summarise(cases))


def test_every_cell_of_the_note_appears_when_nothing_was_run() -> None:
    cells = overlap_table([])
    assert len(cells) == 3 * len(CLAIMS)
    assert {c.verdict for c in cells} == {Verdict.NOT_RUN}


def test_partial_cases_are_not_judged() -> None:
    cases = [replace(make_case(s, overlap=0.3), partial=True) for s in ("recompute_always", "cheapest")]
    assert {c.verdict for c in overlap_table(cases)} == {Verdict.NOT_RUN}


def test_throughput_needs_rates_and_uses_the_idle_baseline() -> None:
    loads = (0.3, 0.6, 0.9, 1.3, 2.0, 3.0)
    cases = [make_case("recompute_always", overlap=0.5, count=60)]
    for selector in ("recompute_always", "route_to_longest_prefix"):
        cases += [make_case(selector, overlap=0.5, utilisation=rho, count=60) for rho in loads]
    rows = slo_rows(cases)
    assert {r.key.selector for r in rows} == {"recompute_always", "route_to_longest_prefix"}
    assert len({r.objective_us for r in rows}) == 1
    assert rows[0].throughput.quantile == 0.5  # 60 samples: no p95
    base, ours = rows
    assert 0 <= base.goodput_per_s < ours.goodput_per_s < max(ours.rates_per_s)
    cells = overlap_table(cases, selector="route_to_longest_prefix")
    cell = next(c for c in cells if c.quantity == "throughput at SLO" and c.overlap == 0.5)
    assert cell.ours is not None
    assert 1.2 < cell.ours.value < 2.5
    assert not slo_rows(cases[:2])


def test_the_objective_comes_from_the_idle_block_of_another_name() -> None:
    idle = replace(make_case("recompute_always", count=30), extra=(("block", "idle"),))
    loaded = [
        replace(make_case("recompute_always", count=30, utilisation=rho), extra=(("block", "loaded"),))
        for rho in (0.3, 0.9)
    ]
    (row,) = slo_rows([idle, *loaded])
    assert row.objective_us > 0
    assert not slo_rows(loaded)
