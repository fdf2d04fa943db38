"""What the router believes of its nodes: exact where engines are as modelled, learned where they are not."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core.costing import PrefillCoefficients, decode_ps, paced
from kvshare_research.core.loads import HELD_UP_REQUESTS, OUTLIER, QUEUED_WORK_US, Loads, Pace, Queue, Service
from kvshare_research.core.nouns import PERMILLE, Action, Outcome, Request, Status
from kvshare_research.driver.simulator import EngineModel, Simulator
from tests.core.fleet import COST, ask, fleet

DECODE_STEP_PS = 80_000_000_000  # of the one token after the first
TICK_US = 1_000_000_000  # no event but those of requests


def loaded(nodes: int = 1, *, slower: int = 1, actions: tuple[Action, ...] = (Action.RECOMPUTE,)) -> Simulator:
    """A fleet whose answers take a third of its prefills; its engines take `slower` times what the router thinks."""
    sim = fleet(nodes, actions=actions, capacity=512)
    sim.tick_us = TICK_US
    sim.router.policy = replace(sim.router.policy, cost=replace(COST, decode_step_ps=DECODE_STEP_PS))
    prefill = PrefillCoefficients(*(slower * c for c in COST.coefficients))
    sim.engine = EngineModel(prefill=prefill, decode_step_ps=slower * DECODE_STEP_PS)
    sim.__post_init__()  # engines of this model
    return sim


def test_all_nodes_at_once_are_each_node_by_itself() -> None:
    sim = loaded(3)
    for number in range(9):
        ask(sim, number, at_us=1 + number * 90_000, executor=(0, 2, 2)[number % 3])
    for now_us in range(0, 1_500_000, 70_000):
        sim.run(until_us=now_us)
        loads = sim.router._loads
        assert list(loads.at(now_us, None).cells[QUEUED_WORK_US]) == [queue.left_us(now_us) for queue in loads._queues]


def error(outcome: Outcome) -> float:
    return abs(outcome.quoted_ttft_us - outcome.ttft_us) / outcome.ttft_us


@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 120)), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_quote_is_exact_where_the_engine_is_as_modelled(gaps: list[tuple[int, int]]) -> None:
    """Any arrivals at one node that recomputes: queue, prefills and the answers of those ahead, to the microsecond."""
    sim, at_us = loaded(), 1
    for number, (gap_us, tail_tokens) in enumerate(gaps):
        at_us += gap_us
        ask(sim, number, tail_tokens=tail_tokens, at_us=at_us)
    for outcome in sim.run():
        assert outcome.status == Status.DONE
        assert abs(outcome.quoted_ttft_us - outcome.ttft_us) <= 2 * len(gaps), outcome


def test_an_engine_half_as_fast_as_modelled_is_found_out() -> None:
    """The first quotes are half of what it takes; after a dozen requests they are within a few percent."""
    sim = loaded(slower=2)
    for number in range(24):
        ask(sim, number, at_us=1 + number * 700_000)
    outcomes = sorted(sim.run(), key=lambda o: o.request_id)
    assert error(outcomes[0]) > 0.45
    assert statistics.median(error(o) for o in outcomes[12:]) < 0.05


def test_each_node_has_its_own_pace() -> None:
    pace = Pace(np.zeros(2, np.int64))
    for work_us in range(1_000, 51_000, 1_000):
        pace.observed(1, work_us, 3 * work_us)
    assert pace.permille[0] == PERMILLE
    assert abs(int(pace.permille[1]) - 3 * PERMILLE) <= 10
    pace.forget(1)
    assert pace.permille[1] == PERMILLE


@given(st.lists(st.tuples(st.integers(-5, 10**7), st.integers(1, 10**9)), max_size=40))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_pace_lies_among_what_was_seen(readings: list[tuple[int, int]]) -> None:
    """Never below the least nor above the largest ratio, the model's own word among them; no single work decides it."""
    pace = Pace(np.zeros(1, np.int64))
    ratios = [PERMILLE]
    for model_us, actual_us in readings:
        before = int(pace.permille[0])
        pace.observed(0, model_us, actual_us)
        ratios += [actual_us * PERMILLE // model_us] if model_us > 0 else []
        assert min(ratios) * 0.99 - 2 <= pace.permille[0] <= max(ratios) * 1.01 + 2
        assert pace.permille[0] <= OUTLIER * before + 2


def test_an_overrun_does_not_shorten_what_waits_behind_it() -> None:
    queue = Queue()
    queue.add(1, 100, 50, now_us=0)
    queue.add(2, 200, 60, now_us=10)
    assert queue.left_us(10) == 100 + 50 + 200 + 60 - 10
    assert queue.left_us(5_000) == 50 + 200 + 60  # the first part is over any moment; the others still take their time
    queue.answered(1, 5_000)
    assert queue.left_us(5_020) == 30 + 200 + 60
    queue.ended(1, 5_100)
    assert queue.left_us(5_100) == 260
    queue.ended(2, 5_200)  # refused or lost: it never answered
    assert queue.left_us(9_000) == 0
    queue.ended(7, 9_000)
    assert queue.left_us(9_000) == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 99), st.integers(0, 99)), max_size=30))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_what_a_decision_reads_of_the_queues_is_what_they_say(steps: list[tuple[int, int, int, int]]) -> None:
    loads, now_us = Loads(2), 0
    for kind, number, first_us, rest_us in steps:
        node, now_us = number % 2, now_us + 7
        request = Request(
            request_id=number, tenant_id=1, segments=(), output_tokens_max=1, ingress=0, arrival_us=0
        )  # fmt: skip
        work = Service(
            node=node, first_us=first_us, rest_us=rest_us, merge_us=0, model_prefill_us=0, model_decode_us=0,
            is_held_up=False,
        )  # fmt: skip
        if kind == 0:
            loads.sent(request, work, now_us)
        elif kind == 1:
            loads.answered(node, number, now_us)
        else:
            loads.ended(work, request, now_us)
        for later_us in (now_us, now_us + 50):
            said = [queue.left_us(later_us) for queue in loads._queues]
            assert loads.at(later_us, None).cells[QUEUED_WORK_US].tolist() == said


@pytest.mark.parametrize("batch_max", [1, 4])
def test_answers_are_held_up_where_they_are_decoded_beside_prefills(batch_max: int) -> None:
    """Of three answers under way all are, in a batch, until they have ended; one at a time, none ever is."""
    sim = loaded()
    sim.router.policy = replace(sim.router.policy, batch_max=batch_max)
    for worker in sim.workers:
        worker.policy = replace(worker.policy, batch_max=batch_max)
    for number in range(3):
        ask(sim, number, at_us=1)
    seen = set()
    for now_us in range(0, 3_000_000, 20_000):
        sim.run(until_us=now_us)
        held_up = int(sim.router._loads.at(now_us, None).cells[HELD_UP_REQUESTS].sum())
        assert held_up == (sim.router.in_flight if batch_max > 1 else 0)
        seen.add((sim.router.in_flight, held_up))
    assert {flying for flying, _ in seen} == {0, 1, 2, 3}


@given(st.integers(1, 20_000), st.integers(0, 4_000), st.integers(0, 4_000))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_slower_node_is_never_quoted_less(permille: int, steps: int, context: int) -> None:
    here, there = paced(COST.coefficients, permille), paced(COST.coefficients, permille + 1)
    assert all(a <= b for a, b in zip(here, there, strict=True))
    assert paced(COST.coefficients, PERMILLE) == COST.coefficients
    longer = decode_ps(9, 2, steps + 1, context) - decode_ps(9, 2, steps, context)
    assert longer == 9 + 2 * (context + steps)  # each token reads all before it


def test_beside_a_batch_an_answer_keeps_nobody_waiting() -> None:
    """With room to decode eight at once, those ahead cost their prefills, and what their answers take of an iteration."""
    sim = loaded()
    sim.router.policy = replace(sim.router.policy, batch_max=8)
    sim.workers[0].policy = replace(sim.workers[0].policy, batch_max=8)
    for number in range(8):
        ask(sim, number, at_us=1)
    outcomes = sorted(sim.run(), key=lambda o: o.request_id)
    assert np.median([error(o) for o in outcomes]) < 0.01
