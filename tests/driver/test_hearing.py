"""A node is given up once, after its silence and no sooner, and never listened to again."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.driver.hearing import Hearing

STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.booleans()), max_size=40)  # node, wait, speaks


@given(STEPS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_silence_and_nothing_else_loses_a_node(steps: list[tuple[int, int, bool]]) -> None:
    hearing, now = Hearing(3, silence_us=50), 0
    heard, told = [0, 0, 0], []
    for node, wait, speaks in steps:
        now += wait
        if speaks:
            assert hearing.heard(node, now) == (node not in told)
            heard[node] = now
        late = hearing.overdue(now)
        assert late == [n for n in range(3) if n not in told and now - heard[n] > 50]
        told += late
        assert hearing.lost == set(told)
        assert hearing.live == [n for n in range(3) if n not in told]
    assert len(told) == len(set(told))


def test_a_new_beginning_forgives_silence_but_raises_nobody() -> None:
    hearing = Hearing(2, silence_us=50)
    assert hearing.overdue(51) == [0, 1]
    fresh = Hearing(2, silence_us=50)
    fresh.heard(1, 40)
    assert fresh.overdue(60) == [0]
    fresh.begin(1_000)
    assert (fresh.overdue(1_040), fresh.live) == ([], [1])
