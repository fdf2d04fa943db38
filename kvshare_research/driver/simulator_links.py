"""A link in virtual time: transfers under way share it equally, and no byte arrives before its share allows it."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from kvshare_research.core.costing import PS_PER_US
from kvshare_research.core.nouns import LinkRow

_MASK = (1 << 64) - 1


@dataclass(slots=True)
class FairLink:
    """Processor sharing in whole picoseconds.

    `_level_ps` is the exclusive link time that each transfer under way since the beginning would have had by now; a
    transfer that came at level v and needs w picoseconds of the link alone ends when the level reaches v + w.
    """

    ps_per_byte: int
    _flows: list[tuple[int, int]] = field(default_factory=list)  # (level at the end, transfer), a heap
    _level_ps: int = 0
    _rest_ps: int = 0
    _at_us: int = 0

    def start(self, transfer: int, byte_count: int, now_us: int) -> None:
        """One more transfer shares the link from now on; `transfer` must rise, it breaks ties."""
        self._advance(now_us)
        heapq.heappush(self._flows, (self._level_ps + byte_count * self.ps_per_byte, transfer))

    def finished(self, now_us: int) -> list[int]:
        """The transfers whose last byte has left by now; they no longer share the link."""
        self._advance(now_us)
        done = []
        while self._flows and self._flows[0][0] <= self._level_ps:
            done.append(heapq.heappop(self._flows)[1])
        return done

    def next_us(self) -> int | None:
        """When the next transfer ends if none is added; None without transfers."""
        if not self._flows:
            return None
        left_ps = (self._flows[0][0] - self._level_ps) * len(self._flows) - self._rest_ps
        return self._at_us + max(0, -(-left_ps // PS_PER_US))

    @property
    def busy(self) -> bool:
        """Whether transfers are under way."""
        return bool(self._flows)

    @property
    def due(self) -> bool:
        """Whether one of them has moved its last byte."""
        return bool(self._flows) and self._flows[0][0] <= self._level_ps

    def advance(self, now_us: int, moving: bool) -> None:
        """Time has passed; if not `moving`, something else had the link."""
        if moving:
            self._advance(now_us)
        self._at_us = now_us

    def _advance(self, now_us: int) -> None:
        passed_ps = (now_us - self._at_us) * PS_PER_US
        self._at_us = now_us
        if self._flows:
            gained, self._rest_ps = divmod(passed_ps + self._rest_ps, len(self._flows))
            self._level_ps += gained
        else:
            self._rest_ps = 0


class TwoClassLink:
    """A link on which prefetches move only while nothing else does. As with a `FairLink`, `finished` must be called at
    every moment that `next_us` names."""

    def __init__(self, ps_per_byte: int) -> None:
        self._front, self._back = FairLink(ps_per_byte), FairLink(ps_per_byte)

    def start(self, transfer: int, byte_count: int, now_us: int, background: bool = False) -> None:
        """One more transfer shares the link with those of its class; `transfer` must rise, it breaks ties."""
        self._back.advance(now_us, moving=not self._front.busy)
        (self._back if background else self._front).start(transfer, byte_count, now_us)

    def finished(self, now_us: int) -> list[int]:
        """The transfers whose last byte has left by now."""
        self._back.advance(now_us, moving=not self._front.busy)
        return [*self._front.finished(now_us), *self._back.finished(now_us)]

    def next_us(self) -> int | None:
        """When `finished` has something next if nothing is added; None without transfers."""
        if self._front.busy and not self._back.due:
            return self._front.next_us()
        return self._back.next_us()


def unit(seed: int, *parts: int) -> float:
    """A number in (0, 1) that depends on nothing but its arguments (SplitMix64)."""
    state = seed & _MASK
    for part in (*parts, 0):
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return ((state >> 11) + 0.5) / (1 << 53)


def one_way_us(link: LinkRow, seed: int, *message: int) -> int:
    """Half a round trip of this message: the mean where the link has no spread, else shifted exponential.

    The least is `rtt_us` minus the mean excess, and the excess has mean (rtt_high_us - rtt_us) / 2, so that the mean is
    `rtt_us` and about 95 % stay below `rtt_high_us`.
    """
    excess_us = (link.rtt_high_us - link.rtt_us) // 2
    if excess_us <= 0:
        return link.rtt_us // 2
    excess_us = min(excess_us, link.rtt_us)
    drawn_us = link.rtt_us - excess_us - excess_us * math.log(unit(seed, *message))
    return int(drawn_us) // 2
