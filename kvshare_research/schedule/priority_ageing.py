"""Strict classes that age: waiting raises a request's class, so that nobody waits for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import QueuedRequest, Schedule


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityAgeingSchedule(Schedule):
    """The largest class runs first; each `ageing_us` of waiting counts as one class. Ties by arrival, then id.

    A request of class 0 overtakes newcomers of class p after p x `ageing_us` at the latest.
    """

    ageing_us: int = 2_000_000

    def __post_init__(self) -> None:
        if self.ageing_us < 1:
            raise ConfigError(f"`ageing_us` is `{self.ageing_us}`, expected at least 1")

    def next(self, queue: Sequence[QueuedRequest], served_tokens: dict[int, int], now_us: int) -> int:
        def rank(i: int) -> tuple[int, int, int]:
            request = queue[i]
            # Scaled by `ageing_us`, so that it stays a whole number.
            urgency = request.priority * self.ageing_us + now_us - request.arrival_us
            return -urgency, request.arrival_us, request.request_id

        return min(range(len(queue)), key=rank)
