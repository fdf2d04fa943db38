"""Virtual token counter: the tenant that has been served least runs next (Sheng et al., OSDI 2024, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from kvshare_research.core.ports import QueuedRequest, Schedule


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VtcSchedule(Schedule):
    """First come first served among the requests of the least served tenant; ties by arrival, then id.

    The worker keeps the counters as the paper does: prompt tokens on admission, output tokens twice, and a tenant that
    comes back from idle starts at the least counter of those waiting, so that idling earns no credit.
    """

    def next(self, queue: Sequence[QueuedRequest], served_tokens: dict[int, int], now_us: int) -> int:
        def rank(i: int) -> tuple[int, int, int]:
            request = queue[i]
            return served_tokens.get(request.tenant_id, 0), request.arrival_us, request.request_id

        return min(range(len(queue)), key=rank)
