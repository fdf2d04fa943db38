"""Answers that are there and are not to be told yet: kept beside the loop, so that nothing waits for them."""

from __future__ import annotations

import heapq
from typing import final

from msgspec.structs import replace

from kvshare_research.core.nouns import Outcome


@final
class Held:
    """Outcomes by the time of their release. Reads no clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Outcome]] = []

    def add(self, outcome: Outcome, release_us: int) -> None:
        """The outcome is told at `release_us`, or as soon after it as the loop comes by."""
        heapq.heappush(self._heap, (release_us, outcome.request_id, outcome))

    def next_us(self) -> int | None:
        """When the next one is due."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_us: int) -> list[Outcome]:
        """Those to be told now; by what the loop came late, their times are later too."""
        out = []
        while self._heap and self._heap[0][0] <= now_us:
            release_us, _, outcome = heapq.heappop(self._heap)
            late_us = now_us - release_us if release_us else 0
            out.append(
                replace(
                    outcome,
                    ttft_us=outcome.ttft_us + late_us,
                    end_to_end_us=outcome.end_to_end_us + late_us,
                    held_us=outcome.held_us + late_us,
                )
            )
        return out
