"""Every schedule of conf/schedule: it names a waiting request, alike each time, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from kvshare_research.build import build
from kvshare_research.core.ports import QueuedRequest, Schedule

CONF = Path(__file__).parents[2] / "conf" / "schedule"
NAMES = sorted(p.stem for p in CONF.glob("*.yaml"))

queues = st.lists(
    st.builds(
        QueuedRequest,
        request_id=st.integers(0, 10**6),
        tenant_id=st.integers(1, 3),
        priority=st.integers(0, 3),
        arrival_us=st.integers(0, 10**7),
        uncached_tokens=st.integers(0, 4096),
        prompt_tokens=st.integers(1, 4096),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda r: r.request_id,
)


def policy(name: str) -> Schedule:
    made: Schedule = build(OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml")), "schedule", Schedule)
    return made


@pytest.mark.parametrize("name", NAMES)
@given(queue=queues, data=st.data())
@settings(deadline=None, derandomize=True, max_examples=60)
def test_its_choice_does_not_depend_on_the_order_of_the_queue(name: str, queue: list[QueuedRequest], data: st.DataObject) -> None:  # fmt: skip
    """The same request is named however the queue is listed."""
    now_us = 2 * 10**7
    shuffled = data.draw(st.permutations(queue))
    served = {1: 500, 2: 0}
    first = queue[policy(name).next(queue, served, now_us)]

    assert shuffled[policy(name).next(shuffled, served, now_us)] == first


@pytest.mark.parametrize("name", NAMES)
@given(queue=queues)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_everybody_is_served(name: str, queue: list[QueuedRequest]) -> None:
    """A queue that gets no newcomers is emptied, whatever service counted before."""
    left, served = list(queue), {1: 10**6}
    while left:
        chosen = left.pop(policy(name).next(left, served, 10**8))
        served[chosen.tenant_id] = served.get(chosen.tenant_id, 0) + chosen.prompt_tokens
    assert not left


def test_first_come_is_first_served() -> None:
    rows = [(3, 20), (1, 10), (2, 10)]
    queue = [
        QueuedRequest(request_id=i, tenant_id=1, priority=0, arrival_us=at, uncached_tokens=1, prompt_tokens=1)
        for i, at in rows
    ]
    assert policy("fcfs").next(queue, {}, 100) == 1


def row(request_id: int, **changes: int) -> QueuedRequest:
    given = {"tenant_id": 1, "priority": 0, "arrival_us": 0, "uncached_tokens": 100, "prompt_tokens": 100}
    return QueuedRequest(request_id=request_id, **(given | changes))


def test_a_class_overtakes_until_waiting_makes_up_for_it() -> None:
    """Class 1 goes before class 0 of the same age; 2 s of waiting are worth one class."""
    made = policy("priority_ageing")
    waiting = row(1, arrival_us=0)
    assert made.next([waiting, row(2, priority=1, arrival_us=0)], {}, 1_000_000) == 1
    assert made.next([waiting, row(2, priority=1, arrival_us=2_000_001)], {}, 3_000_000) == 0


def test_the_least_served_tenant_runs_next() -> None:
    queue = [row(1, tenant_id=1, arrival_us=0), row(2, tenant_id=2, arrival_us=9)]
    assert policy("vtc").next(queue, {1: 10, 2: 9}, 10) == 1
    assert policy("vtc").next(queue, {1: 9, 2: 10}, 10) == 0


def test_locality_wins_within_the_quantum_and_fairness_beyond() -> None:
    queue = [row(1, tenant_id=1, uncached_tokens=10), row(2, tenant_id=2, uncached_tokens=90)]
    assert policy("dlpm").next(queue, {1: 2_000, 2: 0}, 0) == 0
    assert policy("dlpm").next(queue, {1: 2_048, 2: 0}, 0) == 1
