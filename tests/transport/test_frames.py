"""A frame counts only if it is what the holder sealed, belongs to the fetch, and comes once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvshare_research.core import messages as m
from kvshare_research.core.rights import Reader, Ticket
from kvshare_research.driver.blocks import Blocks
from kvshare_research.transport.frames import FrameError, FrameHeader, Landing, frames_of, peek, verify

BLOCK = 96


class ArrayPool:
    """Block bytes in an array `[layer][slot]`."""

    layer_block_bytes = BLOCK

    def __init__(self, layer_count: int, slot_count: int, seed: int) -> None:
        self.layer_count = layer_count
        self.data = np.random.default_rng(seed).integers(0, 256, (layer_count, slot_count, BLOCK), np.uint8)

    def read_layer(self, layer: int, slots: Sequence[int]) -> NDArray[np.uint8]:
        return self.data[layer, list(slots)]

    def write_layer(self, layer: int, slots: Sequence[int], data: Any) -> None:
        self.data[layer, list(slots)] = np.frombuffer(data, np.uint8).reshape(len(slots), BLOCK)


def _fetch(slots: tuple[int, ...]) -> m.Fetch:
    return m.Fetch(
        fetch_id=5, request_id=1, source=0, reader=Reader(1, 0, 0), hashes=(b"h" * 16,) * len(slots), slots=slots,
        deadline_us=1000,
    )  # fmt: skip


def _frames(pool: ArrayPool, slots: Sequence[int], frame_bytes: int) -> list[NDArray[np.uint8]]:
    tickets = tuple(Ticket(1, g, 9) for g in range(len(slots)))
    first = FrameHeader(2, 5, 0, 0, 0, len(slots), pool.layer_count, tickets, tuple(range(len(slots))))
    return list(frames_of(first, slots, pool, frame_bytes))


@given(st.integers(1, 4), st.permutations(range(7)), st.integers(1, 7), st.integers(1, 700), st.randoms())
def test_blocks_arrive_whole_in_any_order(
    layers: int, order: list[int], count: int, frame_bytes: int, shuffler: Any
) -> None:
    holder, asker = ArrayPool(layers, 7, 1), ArrayPool(layers, 7, 2)
    before = asker.data.copy()
    slots, targets = order[:count], tuple(order[::-1][:count])
    frames = _frames(holder, slots, frame_bytes)
    shuffler.shuffle(frames)
    counters: Counter[str] = Counter()
    blocks = Blocks(2, asker, lambda: 0, counters)
    blocks.start_landing(_fetch(targets))
    events = [blocks.land(0, frame) for frame in frames]
    assert events[:-1] == [None] * (len(frames) - 1)
    landed = events[-1]
    assert isinstance(landed, m.FetchLanded)
    assert landed.intact
    assert landed.bytes_moved == counters["payload_bytes_received"] == layers * count * BLOCK
    assert [t.generation for t in landed.tickets] == list(landed.origins) == list(range(count))
    assert (asker.data[:, list(targets)] == holder.data[:, slots]).all()
    untouched = [s for s in range(7) if s not in targets]
    assert (asker.data[:, untouched] == before[:, untouched]).all()


@given(st.data())
def test_no_flipped_bit_is_ever_used(data: Any) -> None:
    holder, asker = ArrayPool(2, 4, 1), ArrayPool(2, 4, 2)
    frame = data.draw(st.sampled_from(_frames(holder, [0, 1, 2], 200)))
    _, payload = peek(frame)
    used = 8 + int.from_bytes(bytes(frame[4:8]), "little")
    at = data.draw(st.one_of(st.integers(0, used - 1), st.integers(frame.size - payload.size, frame.size - 1)))
    frame[at] ^= 1 << data.draw(st.integers(0, 7))
    if at in (1, 2, 3):
        return  # spare bytes carry nothing
    before = asker.data.copy()
    blocks = Blocks(2, asker, lambda: 0, Counter())
    blocks.start_landing(_fetch((3, 2, 1)))
    event = blocks.land(0, frame)
    assert event is None or not event.intact
    assert (asker.data == before).all()


def test_late_foreign_and_repeated_frames_write_nothing() -> None:
    holder, asker = ArrayPool(2, 4, 1), ArrayPool(2, 4, 2)
    before = asker.data.copy()
    frames = _frames(holder, [0, 1], 1 << 20)
    now = [0]
    counters: Counter[str] = Counter()
    blocks = Blocks(2, asker, lambda: now[0], counters)
    assert blocks.land(0, frames[0]) is None  # nobody asked
    blocks.start_landing(_fetch((2, 3)))
    assert blocks.land(1, frames[0]) is None  # another node than the one asked
    now[0] = 1000
    assert blocks.expired() == [(0, m.FetchFailed(fetch_id=5, reason="deadline"))]
    assert blocks.land(0, frames[0]) is None  # past the deadline
    assert counters["late_frames"] == 3
    assert Blocks(3, asker, lambda: 0, counters).land(0, frames[0]) is None  # of an earlier case
    assert (asker.data == before).all()
    again = Blocks(2, asker, lambda: 0, counters)
    again.start_landing(_fetch((2, 3)))
    assert again.land(0, frames[0]) is None
    repeated = again.land(0, frames[0])
    assert repeated is not None
    assert not repeated.intact


def test_more_blocks_than_asked_for_are_refused() -> None:
    holder, asker = ArrayPool(1, 4, 1), ArrayPool(1, 4, 2)
    frame = _frames(holder, [0, 1, 2], 1 << 20)[0]
    header, payload = peek(frame)
    verify(header, payload)
    landing = Landing(fetch_id=5, source=0, slots=(1, 2), started_us=0, deadline_us=9)
    with pytest.raises(FrameError, match="not asked for"):
        landing.accept(header, payload, asker, lambda: 0)


def test_a_cancelled_fetch_stops_and_frees_its_pins_once() -> None:
    holder = ArrayPool(3, 4, 1)
    blocks = Blocks(2, holder, lambda: 0, Counter())
    effect = m.SendBlocks(fetch_id=5, asker=1, slots=(0, 1), tickets=(Ticket(1, 1, 9),) * 2, origins=(1, 1))
    blocks.start_sending(effect)
    assert isinstance(blocks.next_frame(), tuple)
    assert blocks.stop_sending(5, 2) is None
    assert blocks.stop_sending(5, 1) == m.FetchSent(fetch_id=5, asker=1)
    assert blocks.next_frame() is None
    assert blocks.stop_sending(5, 1) is None


def test_a_prefetch_is_sent_where_no_request_waits_and_the_link_is_idle() -> None:
    blocks = Blocks(2, ArrayPool(2, 4, 1), lambda: 0, Counter())

    def send(fetch_id: int, background: bool) -> None:
        row = m.SendBlocks(
            fetch_id=fetch_id, asker=fetch_id, slots=(0, 1), tickets=(Ticket(1, 1, 9),) * 2, origins=(1, 1),
            background=background,
        )  # fmt: skip
        blocks.start_sending(row)

    def sent(link_idle: bool) -> int | None:
        frame = blocks.next_frame(link_idle=link_idle)
        return frame[0] if isinstance(frame, tuple) else None if frame is None else -frame.fetch_id

    send(7, True)
    assert sent(False) is None
    first = sent(True)
    assert first == 7
    send(8, False)
    order = [sent(False)]
    while order[-1] is not None:
        order.append(sent(False))
    assert set(order) == {8, -8, None}, "the request's frames to the end, and none of the prefetch"
    rest = [sent(True) for _ in range(9)]
    assert -7 in rest and rest[-1] is None
