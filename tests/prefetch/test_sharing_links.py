"""What a prefetch may take of a link: nothing that a request needs, and nothing of what is measured of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core import messages as m
from kvshare_research.driver.simulator import Simulator
from kvshare_research.driver.simulator_links import TwoClassLink
from tests.core.fleet import GROUP_ID, ask, fleet, only
from tests.prefetch.test_prefetch import SECOND, Wish, foreseeing


def test_only_a_fetch_alone_on_its_link_measures_it() -> None:
    """Two at once see half the rate each: taken for the link's, that would talk the selector out of pulling."""
    told: list[m.LinkMeasured] = []
    sim = fleet(2, ps_per_byte=10_000)
    inner = sim.router.handle

    def handle(event: m.RouterEvent, now_us: int) -> tuple[m.RouterEffect, ...]:
        told.extend([event] if isinstance(event, m.LinkMeasured) else [])
        return inner(event, now_us)

    sim.router.handle = handle  # type: ignore[method-assign]
    for i, prefix in enumerate("abc"):
        ask(sim, i + 1, prefix=prefix, executor=0, at_us=1 + i * SECOND)
    for i, prefix in enumerate("ab"):
        ask(sim, 10 + i, prefix=prefix, executor=1, ingress=1, at_us=10 * SECOND + i)
    sim.run()
    assert told == []
    ask(sim, 20, prefix="c", executor=1, ingress=1, at_us=40 * SECOND)
    sim.run()
    assert len(told) == 1
    assert told[0].elapsed_us == pytest.approx(told[0].bytes_moved / 100 + 1_000, rel=0.02)


def test_what_a_request_fetches_goes_before_a_prefetch() -> None:
    """A prefetch has the link; the demand that comes meanwhile takes as long as if there were none."""

    def play(prefetched: bool) -> Simulator:
        sim = foreseeing(Wish(""), ps_per_byte=10_000) if prefetched else fleet(2, ps_per_byte=10_000)
        ask(sim, 1, tenant=2, prefix="x", prefix_scope=GROUP_ID, executor=0)
        ask(sim, 2, tenant=2, prefix="z", prefix_scope=GROUP_ID, executor=0, at_us=4 * SECOND)
        ask(sim, 3, tenant=1, prefix="y", executor=1, ingress=1, at_us=8 * SECOND)
        ask(sim, 4, tenant=1, prefix="z", prefix_scope=GROUP_ID, executor=1, ingress=1, at_us=8 * SECOND + 9_000)
        sim.run()
        return sim

    plain, eager = play(False), play(True)
    assert only(plain.outcomes, 4).pulled_tokens > 0
    assert only(eager.outcomes, 4).fetch_us == only(plain.outcomes, 4).fetch_us
    assert eager.workers[1].prefetching.counters["landed_blocks"] == 8, "it came in the end"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=80, deadline=None)
def test_a_link_of_two_classes_carries_each_byte_once_and_the_front_first(flows: list[tuple[int, int, bool]]) -> None:
    """The front ends as if alone on a fair link; all is carried in the time that one fair link takes for all."""

    def ends(link: TwoClassLink, rows: list[tuple[int, int, bool]]) -> dict[int, int]:
        found, waiting, now = {}, [(at, i, size, back) for i, (at, size, back) in enumerate(rows)], 0
        waiting.sort()
        while waiting or link.next_us() is not None:
            due = link.next_us()
            now = min([t for t in (due, waiting[0][0] if waiting else None) if t is not None])
            found |= dict.fromkeys(link.finished(now), now)
            while waiting and waiting[0][0] <= now:
                _, i, size, back = waiting.pop(0)
                link.start(i, size, now, back)
        return found

    per_us = 1_000_000
    both = ends(TwoClassLink(per_us), flows)
    front = ends(TwoClassLink(per_us), [row for row in flows if not row[2]])
    every = ends(TwoClassLink(per_us), [(at, size, False) for at, size, _ in flows])
    assert [both[i] for i, row in enumerate(flows) if not row[2]] == [front[i] for i in range(len(front))]
    assert abs(max(both.values()) - max(every.values())) <= len(flows)
