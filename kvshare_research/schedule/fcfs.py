"""First come, first served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.ports import QueuedRequest, Schedule


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FcfsSchedule(Schedule):
    """The request that reached this worker first runs next; ties by request id."""

    by_arrival: ClassVar[bool] = True

    def next(self, queue: Sequence[QueuedRequest], served_tokens: dict[int, int], now_us: int) -> int:
        return min(range(len(queue)), key=lambda i: (queue[i].arrival_us, queue[i].request_id))
