"""A prefetch cancelled after any number of frames: both ends as the ranks put them together, but for the wire."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvshare_research.core import messages as m
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import Action, Chain, Plan, Request, Segment
from kvshare_research.core.rights import Reader
from kvshare_research.core.running import WorkerPolicy
from kvshare_research.core.worker import Worker
from kvshare_research.driver.blocks import Blocks
from kvshare_research.retention.lru import LruRetention
from kvshare_research.schedule.fcfs import FcfsSchedule
from tests.core.fleet import DIRECTORY, GROUP_ID
from tests.transport.test_frames import ArrayPool

BLOCKS, LAYERS, CAPACITY, SIZE = 5, 3, 12, 16
CHAIN = Chain(hashes=bytes(range(16 * BLOCKS)), scope_ends=((GROUP_ID, BLOCKS),), block_tokens=SIZE)
READER = Reader(2, 0, 0)
FRAMES = LAYERS  # one frame holds a layer of all blocks


class End:
    """A worker and its end of the transfers."""

    def __init__(self, node: int) -> None:
        policy = WorkerPolicy(retention=LruRetention(), schedule=FcfsSchedule(), block_tokens=SIZE, block_bytes=1)
        ledger = Ledger(capacity_blocks=CAPACITY, accounts=(), retention=LruRetention())
        self.worker = Worker(node=node, incarnation=1, policy=policy, ledger=ledger, directory=DIRECTORY)
        self.pool = ArrayPool(LAYERS, CAPACITY, node)
        self.counters: Counter[str] = Counter()
        self.blocks = Blocks(1, self.pool, lambda: 0, self.counters)

    def handle(self, event: Any, kind: type) -> Any:
        """The one effect of this kind."""
        found = [e for e in self.worker.handle(event, 1) if isinstance(e, kind)]
        return found[0] if found else None

    def clean(self) -> None:
        """Nothing is pinned, open, being sent or awaited."""
        self.worker.ledger.check()
        assert self.worker.prefetching.flights == {}
        assert self.worker.ledger.pinned_blocks == 0
        assert self.blocks.next_deadline_us() is None
        assert self.blocks.next_frame() is None


def request(number: int, tenant: int) -> Request:
    return Request(
        request_id=number, tenant_id=tenant, segments=(Segment(scope_id=GROUP_ID, token_count=BLOCKS * SIZE + 1),),
        output_tokens_max=1, ingress=0, arrival_us=0,
    )  # fmt: skip


def holder() -> End:
    """It has computed the chain for tenant one."""
    end = End(0)
    plan = Plan(
        request_id=1, action=Action.RECOMPUTE, executor=0, resident_blocks=0, front_blocks=0, pieces=(), quoted_ttft_us=0
    )  # fmt: skip
    work = end.handle(m.Dispatched(request=request(1, 1), chain=CHAIN, plan=plan, reader=Reader(1, 0, 0)), m.Prefill)
    end.worker.handle(m.PrefillDone(request_id=1, end_token=work.end_token, elapsed_us=1, merge_us=0, first_token=0), 1)
    return end


def cancel(asker: End, source: End) -> None:
    """As the drivers do: the landing ends, then the holder hears of it."""
    effect = asker.handle(m.PrefetchCancelled(prefetch_id=9), m.CancelFetch)
    if effect is None or asker.blocks.stop_landing(effect.fetch_id) is None:
        return
    sent = source.blocks.stop_sending(effect.fetch_id, 1)
    if sent is not None:
        source.worker.handle(sent, 1)


def begun() -> tuple[End, End, m.Fetch, m.SendBlocks]:
    source, asker = holder(), End(1)
    asked = m.PrefetchAsked(
        request=request(9, 2), chain=CHAIN, start=0, source=0, reader=READER, deadline_us=1_000_000
    )  # fmt: skip
    fetch = asker.handle(asked, m.Fetch)
    asker.blocks.start_landing(fetch)
    ask = m.FetchAsked(
        fetch_id=fetch.fetch_id, asker=1, reader=READER, hashes=fetch.hashes, revision=0, marks=fetch.marks,
        background=fetch.background,
    )  # fmt: skip
    return source, asker, fetch, source.handle(ask, m.SendBlocks)


def frames(source: End, count: int) -> list[Any]:
    """The next frames to leave, as far as there are any; the holder's pins end with the last."""
    out = []
    for _ in range(count):
        frame = source.blocks.next_frame()
        if isinstance(frame, m.FetchSent):
            source.worker.handle(frame, 1)
        elif frame is not None:
            out.append(frame[1])
    return out


@pytest.mark.parametrize(("left", "arrived"), [(n, k) for n in range(FRAMES + 2) for k in range(min(n, FRAMES) + 1)])
def test_cancelled_after_any_frame_nothing_leaks_and_nothing_more_is_written(left: int, arrived: int) -> None:
    """`left` frames have left the holder, of which `arrived` are there; the others come after the cancellation."""
    source, asker, fetch, send = begun()
    assert fetch.background and send.background, "the lowest class on the link"
    source.blocks.start_sending(send)
    sent = frames(source, left)
    for frame in sent[:arrived]:
        landed = asker.blocks.land(0, frame)
        if landed is not None:
            asker.worker.handle(landed, 1)
    whole = arrived == FRAMES
    cancel(asker, source)
    before = asker.pool.data.copy()
    for frame in sent[arrived:]:
        assert asker.blocks.land(0, frame) is None
    assert (asker.pool.data == before).all(), "written after the cancellation"
    assert asker.counters["late_frames"] == len(sent) - min(arrived, len(sent))
    frames(source, FRAMES + 1)
    for end in (source, asker):
        end.clean()
    assert asker.worker.ledger.free_blocks == CAPACITY - (BLOCKS if whole else 0)
    assert asker.worker.prefetching.unused_blocks == (BLOCKS if whole else 0)
    assert source.worker.ledger.free_blocks == CAPACITY - BLOCKS, "what the holder has is still there"


def test_cancelled_before_the_holder_was_asked() -> None:
    source, asker, fetch, send = begun()
    cancel(asker, source)
    asker.clean()
    source.blocks.start_sending(send)  # the question was under way; the holder sends in vain
    for frame in frames(source, FRAMES + 1):
        assert asker.blocks.land(0, frame) is None
    source.clean()
    assert asker.worker.ledger.free_blocks == CAPACITY
    assert asker.handle(m.PrefetchCancelled(prefetch_id=9), m.CancelFetch) is None, "once is enough"
    assert fetch.fetch_id == send.fetch_id


def test_a_driver_that_goes_on_landing_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Blocks, "stop_landing", lambda self, fetch_id, said_by=None: 0)
    with pytest.raises(AssertionError):
        test_cancelled_after_any_frame_nothing_leaks_and_nothing_more_is_written(FRAMES, 1)


def test_a_holder_that_is_not_told_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Blocks, "stop_sending", lambda self, fetch_id, asker: self._sending.clear())
    with pytest.raises(AssertionError):
        test_cancelled_after_any_frame_nothing_leaks_and_nothing_more_is_written(1, 1)
