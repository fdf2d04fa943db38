"""No prefetch: bytes move when a request needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.ports import Prefetch, PrefetchIntent


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OffPrefetch(Prefetch):
    """Proposes nothing, ever."""

    def propose(self, now_us: int) -> tuple[PrefetchIntent, ...]:
        return ()
