"""Load over time: every request's time is in it once, on its own node."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvshare_research.core.nouns import Outcome, Status
from kvshare_research.metrics.node_load import node_load

DONE = Outcome(request_id=0, tenant_id=1, application="", status=Status.DONE)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**7), st.integers(1, 10**6)), min_size=1, max_size=40),
    st.integers(1, 130),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_the_steps_add_up_to_all_times(rows: list[tuple[int, int, int]], steps: int) -> None:
    outcomes = [replace(DONE, executor=node, arrival_us=at, end_to_end_us=us) for node, at, us in rows]
    found = node_load(outcomes, 2, steps)
    assert found is not None
    for node, requests in enumerate(found.requests):
        spent_us = sum(us for where, _, us in rows if where == node)
        assert sum(requests) * found.step_us == pytest.approx(spent_us, rel=1e-9, abs=1e-3)
        assert len(requests) == steps
        assert min(requests) >= 0


def test_two_at_once_on_one_of_two_nodes() -> None:
    rows = [replace(DONE, executor=1, arrival_us=0, end_to_end_us=100) for _ in range(2)]
    found = node_load([*rows, replace(DONE, status=Status.REJECTED)], 2, 4)
    assert found is not None
    assert found.requests == ((0.0,) * 4, (2.0,) * 4)
    assert found.imbalance == 2.0
    assert node_load([replace(DONE, status=Status.REJECTED)], 2) is None
