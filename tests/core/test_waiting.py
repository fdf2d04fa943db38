"""The waiting queue names the request that its schedule would, and remembers who waits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core import messages as m
from kvshare_research.core.nouns import Action, Chain, Plan, Request, Segment
from kvshare_research.core.rights import Reader
from kvshare_research.core.waiting import Waiting, asked_of
from kvshare_research.schedule.fcfs import FcfsSchedule


def dispatched(request_id: int, tenant_id: int) -> m.Dispatched:
    request = Request(
        request_id=request_id, tenant_id=tenant_id, segments=(Segment(scope_id=0, token_count=8),),
        output_tokens_max=1, ingress=0, arrival_us=0,
    )  # fmt: skip
    plan = Plan(
        request_id=request_id, action=Action.RECOMPUTE, executor=0, resident_blocks=0, front_blocks=0, pieces=(),
        quoted_ttft_us=0,
    )  # fmt: skip
    chain = Chain(hashes=b"", scope_ends=(), block_tokens=8)
    return m.Dispatched(request=request, chain=chain, plan=plan, reader=Reader(tenant_id, 0, 0))


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.booleans()), min_size=1, max_size=30)


@given(steps=steps, order=st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True)
def test_first_come_first_served_without_looking_at_all(steps: list[tuple[int, int, bool]], order) -> None:
    """Whatever is added and taken: what `by_arrival` shortens is what the schedule itself answers."""
    waiting = Waiting(FcfsSchedule(), 8)
    ids = list(range(len(steps)))
    order.shuffle(ids)
    now_us = 0
    for (later_us, tenant_id, take), request_id in zip(steps, ids, strict=True):
        now_us += later_us
        waiting.add(asked_of(dispatched(request_id, tenant_id), 8, now_us))
        position, asked = waiting.next(lambda _: 0, now_us)
        assert position == FcfsSchedule().next(waiting._queue, {}, now_us)
        assert dict(waiting._tenants) == {
            t: n for t in (1, 2, 3) if (n := sum(row.tenant_id == t for row in waiting._queue))
        }
        if take:
            assert waiting.remove(position) is asked
