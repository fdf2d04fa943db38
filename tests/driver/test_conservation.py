"""The fleet's books after every single event: no request lost, none twice, no effect before its cause, no end missing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core.nouns import Outcome, Status
from kvshare_research.core.worker import Worker
from kvshare_research.driver.simulator import Simulator
from tests.core.fleet import DIRECTORY, ask, fleet

EVENTS_PER_REQUEST = 400  # far more than any request takes: a fleet that goes round in circles exceeds it


def play(sim: Simulator) -> None:
    """All events happen one by one; AssertionError at the first after which the books are wrong."""
    requests, told, before_us = len(sim._heap), 0, 0
    while sim._heap:
        sim.run(until_us=sim._heap[0][0])
        assert sim.now_us >= before_us, "time steps back"
        before_us = sim.now_us
        assert sim.injected == len(sim.outcomes) + sim.router.in_flight, "a request is lost or counted twice"
        assert sim.events < EVENTS_PER_REQUEST * requests, "the fleet goes round in circles"
        for outcome in sim.outcomes[told:]:
            caused(sim, outcome)
        told = len(sim.outcomes)
        for worker in sim.workers:
            worker.ledger.check()
    assert sim.router.in_flight == 0, "a request never ends"
    assert len({outcome.request_id for outcome in sim.outcomes}) == len(sim.outcomes) == sim.injected


def caused(sim: Simulator, outcome: Outcome) -> None:
    """What has just been recorded took as long as it says, in the order in which it can happen."""
    assert outcome.arrival_us + outcome.end_to_end_us == sim.now_us, "an end that is not now"
    if outcome.status == Status.DONE:
        assert 0 < outcome.ttft_us <= outcome.end_to_end_us, "an answer before its first token"
        away = outcome.executor != outcome.ingress
        assert outcome.ttft_us >= away * sim.links[0][1].rtt_us // 2 * 2 + outcome.prefill_us, "quicker than its parts"


def troubled(
    requests: list[tuple[int, int, int, int, int]],
    capacity: int,
    loss: float,
    dies_us: int | None,
    kind: type = Simulator,
) -> Any:
    """A fleet of three with lost events, late events and a node that may die and return."""
    sim: Any = fleet(3, capacity=capacity, event_delay_us=5_000, ps_per_byte=20_000)
    sim.__class__ = kind
    sim.event_loss_ratio, sim.seed, sim.tick_us = loss, 7, 100_000
    first = sim.workers[0]
    sim.revive = lambda node, incarnation: Worker(
        node=node, incarnation=incarnation, policy=first.policy, ledger=fleet(1, capacity=capacity).workers[0].ledger,
        directory=DIRECTORY,
    )  # fmt: skip
    for number, (tenant, prefix, blocks, at_us, ingress) in enumerate(requests):
        ask(sim, number, tenant=tenant, prefix=f"x{prefix}", prefix_blocks=blocks, at_us=at_us + 1, ingress=ingress)
    if dies_us is not None:
        sim.fail(1, dies_us, noticed_us=dies_us + 80_000, back_us=dies_us + 300_000)
    return sim


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 2), st.integers(0, 3), st.sampled_from([4, 8, 60]), st.integers(0, 400_000), st.integers(0, 2)
    ),
    min_size=1,
    max_size=10,
)  # of 60 blocks: never fits
SOME = [(1 + n % 2, n % 3, 8, 60_000 * n, n % 3) for n in range(8)]


@given(
    requests=REQUESTS,
    capacity=st.integers(14, 40),
    loss=st.sampled_from([0.0, 0.4]),
    dies_us=st.none() | st.integers(1, 300_000),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_books_are_right_after_every_event_whatever_goes_wrong(
    requests: list[tuple[int, int, int, int, int]], capacity: int, loss: float, dies_us: int | None
) -> None:
    sim = troubled(requests, capacity, loss, dies_us)
    play(sim)
    for outcome in sim.outcomes:
        never = requests[outcome.request_id][2] == 60
        assert (outcome.status == Status.REJECTED) >= never, "what never fits is turned away"


class _Twice(Simulator):
    __slots__ = ()

    def _told(self, outcome: Outcome, now_us: int) -> None:
        super()._told(outcome, now_us)
        super()._told(outcome, now_us)


class _Loses(Simulator):
    __slots__ = ()

    def _told(self, outcome: Outcome, now_us: int) -> None:
        if outcome.request_id != 3:
            super()._told(outcome, now_us)


class _Late(Simulator):
    __slots__ = ()

    def _told(self, outcome: Outcome, now_us: int) -> None:
        self.now_us += 1
        super()._told(outcome, now_us)


class _Circles(Simulator):
    __slots__ = ()

    def _tick(self, now_us: int) -> None:
        self._at(now_us + 1, self._tick)


class _Hangs(Simulator):
    __slots__ = ()

    def _engine_ends(self, node: int, wake: int, now_us: int) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (_Twice, "counted twice"),
        (_Loses, "lost"),
        (_Late, "not now"),
        (_Circles, "circles"),
        (_Hangs, "circles"),
    ],
)
def test_a_fleet_with_a_planted_mistake_is_found_out(kind: type, words: str) -> None:
    play(troubled(SOME, 40, 0.0, None))
    with pytest.raises(AssertionError, match=words):
        play(troubled(SOME, 40, 0.0, None, kind))
