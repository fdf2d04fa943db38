"""An *emulated* link: messages wait at their sender until the link they would have taken has carried them.

Per directed pair of nodes a first-in first-out queue in token time: a message starts when the link is free, occupies it
for size / rate, and is due half a round trip after it left. Then it is really sent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvshare_research.transport.link import Link
from kvshare_research.transport.mpi import Channel, Endpoint, Received


@dataclass(slots=True)
class LinkClock:
    """When messages are due; pure, and one per sender since each directed link has one sender."""

    link: Link
    _free_us: dict[tuple[int, int], float] = field(default_factory=dict)

    def due_us(self, source: int, reader: int, size_bytes: int, now_us: int) -> int:
        """When the last byte arrives; the link is busy until half a round trip before."""
        rate = self.link.bits_per_s(source, reader)
        start = max(float(now_us), self._free_us.get((source, reader), 0.0))
        free = start if rate is None else start + size_bytes * 8e6 / rate
        self._free_us[source, reader] = free
        return round(free + self.link.rtt_between_us(source, reader) / 2)

    def delay_us(self, source: int, reader: int) -> int:
        """Half a round trip, for small messages that do not queue behind blocks."""
        return self.link.rtt_between_us(source, reader) // 2


@dataclass(order=True, slots=True)
class _Held:
    due_us: int
    order: int
    rank: int = field(compare=False)
    channel: Channel = field(compare=False)
    data: Any = field(compare=False)


class ShapedEndpoint:
    """An endpoint whose messages between nodes are held until they are due; all else passes at once."""

    def __init__(self, inner: Endpoint, link: Link, now_us: Callable[[], int]) -> None:
        self.inner = inner
        self._clock = LinkClock(link)
        self._now_us = now_us
        self._held: list[_Held] = []
        self._count = 0
        self._held_bytes = 0

    def send_over(self, source: int, reader: int, rank: int, channel: Channel, data: Any) -> None:
        """Sends from node to node: delayed and paced."""
        self._hold(self._clock.due_us(source, reader, memoryview(data).nbytes, self._now_us()), rank, channel, data)

    def send_after_hop(self, source: int, reader: int, rank: int, channel: Channel, data: Any) -> None:
        """Sends what a client's request or answer would do between these nodes: delayed, not paced."""
        self._hold(self._now_us() + self._clock.delay_us(source, reader), rank, channel, data)

    def send(self, rank: int, channel: Channel, data: Any) -> None:
        self.inner.send(rank, channel, data)

    def poll(self) -> list[Received]:
        """Sends what is due, then receives."""
        now_us = self._now_us()
        while self._held and self._held[0].due_us <= now_us:
            held = heapq.heappop(self._held)
            self._held_bytes -= memoryview(held.data).nbytes
            self.inner.send(held.rank, held.channel, held.data)
        return self.inner.poll()

    def unsent_bytes(self) -> int:
        return self._held_bytes + self.inner.unsent_bytes()

    def drop(self, rank: int) -> None:
        self._held = [held for held in self._held if held.rank != rank]
        heapq.heapify(self._held)
        self._held_bytes = sum(memoryview(held.data).nbytes for held in self._held)
        self.inner.drop(rank)

    def in_motion(self) -> bool:
        """Whether the inner endpoint needs to be polled without rest; held messages do not need that."""
        return self.inner.in_motion()

    def next_due_us(self) -> int | None:
        """When `poll` has something to send next."""
        return self._held[0].due_us if self._held else None

    def forget(self) -> None:
        """Held messages are dropped and all links are free: a new case begins."""
        self._held.clear()
        self._held_bytes = 0
        self._clock = LinkClock(self._clock.link)

    def use(self, link: Link) -> None:
        """From now on these links; drops what is held."""
        self._clock = LinkClock(link)
        self.forget()

    def _hold(self, due_us: int, rank: int, channel: Channel, data: Any) -> None:
        if due_us <= self._now_us():
            self.inner.send(rank, channel, data)
            return
        self._count += 1
        self._held_bytes += memoryview(data).nbytes
        heapq.heappush(self._held, _Held(due_us, self._count, rank, channel, data))
