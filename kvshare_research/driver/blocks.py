"""Both ends of block transfers on one worker: sends what its ledger allowed, lands what its fetches asked for."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvshare_research.core import messages as m
from kvshare_research.transport.frames import Bytes, FrameError, FrameHeader, Landing, PoolBytes, frames_of, peek

UNSENT_BYTES_MAX = 64 << 20  # frames made and not yet gone; bounds memory, and exceeds rate x delay of any link here


@dataclass(slots=True)
class _Sending:
    fetch_id: int
    asker: int
    frames: Iterator[Bytes]
    background: bool


class Blocks:
    """Transfers of one case. Everything it returns is an event for the worker."""

    def __init__(self, case: int, pool: PoolBytes, now_us: Callable[[], int], counters: Counter[str]) -> None:
        self._case = case
        self._pool = pool
        self._now_us = now_us
        self._counters = counters
        self._sending: deque[_Sending] = deque()
        self._landing: dict[int, Landing] = {}

    # ------------------------------------------------------------------ the holder's end
    def start_sending(self, effect: m.SendBlocks) -> None:
        """Frames of these slots will come from `next_frame`; the slots are pinned until the FetchSent it yields."""
        first = FrameHeader(
            self._case, effect.fetch_id, 0, 0, 0, len(effect.slots), self._pool.layer_count,
            effect.tickets, effect.origins, effect.marks,
        )  # fmt: skip
        frames = frames_of(first, effect.slots, self._pool)
        self._sending.append(_Sending(effect.fetch_id, effect.asker, frames, effect.background))

    def next_frame(self, *, link_idle: bool = True) -> tuple[int, Bytes] | m.FetchSent | None:
        """The next (asker, frame), fetches taking turns; FetchSent after a fetch's last; None if there is nothing.

        A prefetch's frame comes only where no request waits for one and all before it have left (`link_idle`): what a
        request needs waits for one such frame at most.
        """
        at = next((i for i, sending in enumerate(self._sending) if not sending.background), None)
        if at is None and (not self._sending or not link_idle):
            return None
        sending = self._sending[at or 0]
        self._sending.remove(sending)
        frame = next(sending.frames, None)
        if frame is None:
            return m.FetchSent(fetch_id=sending.fetch_id, asker=sending.asker)
        self._sending.append(sending)
        _, payload = peek(frame)
        self._counters["frames_sent"] += 1
        self._counters["payload_bytes_sent"] += payload.size
        self._counters["header_bytes_sent"] += frame.size - payload.size
        return sending.asker, frame

    def stop_sending(self, fetch_id: int, asker: int) -> m.FetchSent | None:
        """The asker wants no more of it; what has left has left."""
        for sending in self._sending:
            if (sending.fetch_id, sending.asker) == (fetch_id, asker):
                self._sending.remove(sending)
                return m.FetchSent(fetch_id=fetch_id, asker=asker)
        return None

    # ------------------------------------------------------------------ the asker's end
    def start_landing(self, effect: m.Fetch) -> None:
        """Frames of this fetch may be written to its slots from now on."""
        self._landing[effect.fetch_id] = Landing(
            fetch_id=effect.fetch_id, source=effect.source, slots=effect.slots,
            started_us=self._now_us(), deadline_us=effect.deadline_us,
        )  # fmt: skip

    def stop_landing(self, fetch_id: int, said_by: int | None = None) -> int | None:
        """Nothing of this fetch is written any more; its source, or None if it was over (or not theirs to end)."""
        landing = self._landing.get(fetch_id)
        if landing is None or said_by not in (None, landing.source):
            return None
        del self._landing[fetch_id]
        return landing.source

    def land(self, source: int, frame: Bytes) -> m.FetchLanded | None:
        """The frame is in the pool if it is sound, wanted and of this source; an event if that decides its fetch."""
        try:
            header, payload = peek(frame)
        except FrameError:
            self._counters["damaged_frames"] += 1  # of which fetch, nobody can say: its deadline will end it
            return None
        landing = self._landing.get(header.fetch_id) if header.case == self._case else None
        if landing is None or landing.source != source:
            self._counters["late_frames"] += 1
            return None
        try:
            complete = landing.accept(header, payload, self._pool, self._now_us)
        except FrameError:
            self._counters["damaged_frames"] += 1
            return self._landed(landing, intact=False)
        self._counters["frames_received"] += 1
        self._counters["payload_bytes_received"] += payload.size
        self._counters["header_bytes_received"] += frame.size - payload.size
        return self._landed(landing, intact=True) if complete else None

    def expired(self) -> list[tuple[int, m.FetchFailed]]:
        """(source, event) of each fetch past its deadline; nothing of it is written any more."""
        now_us = self._now_us()
        late = [landing for landing in self._landing.values() if now_us >= landing.deadline_us]
        for landing in late:
            del self._landing[landing.fetch_id]
        self._counters["deadlines_missed"] += len(late)
        return [(late_.source, m.FetchFailed(fetch_id=late_.fetch_id, reason="deadline")) for late_ in late]

    def forget(self, node: int) -> tuple[list[m.FetchSent], list[m.FetchFailed]]:
        """The node is dead: what was on its way to it has gone, what was to come from it never will."""
        gone = [row for row in self._sending if row.asker == node]
        self._sending = deque(row for row in self._sending if row.asker != node)
        lost = [fetch_id for fetch_id, landing in self._landing.items() if landing.source == node]
        for fetch_id in lost:
            del self._landing[fetch_id]
        sent = [m.FetchSent(fetch_id=row.fetch_id, asker=node) for row in gone]
        return sent, [m.FetchFailed(fetch_id=fetch_id, reason="holder lost") for fetch_id in lost]

    def next_deadline_us(self) -> int | None:
        return min((landing.deadline_us for landing in self._landing.values()), default=None)

    def _landed(self, landing: Landing, *, intact: bool) -> m.FetchLanded:
        del self._landing[landing.fetch_id]
        return m.FetchLanded(
            fetch_id=landing.fetch_id,
            block_count=landing.block_count or 0,
            tickets=landing.tickets,
            origins=landing.origins,
            bytes_moved=landing.payload_bytes,
            elapsed_us=self._now_us() - landing.started_us,
            merge_us=landing.merge_us,
            intact=intact,
            marks=landing.marks,
        )
