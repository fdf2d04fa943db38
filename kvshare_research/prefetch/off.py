"""No prefetch: bytes move when a request needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from kvshare_research.core.ports import Prefetch, PrefetchIntent, Seen


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OffPrefetch(Prefetch):
    """Proposes nothing, ever."""

    price_ps_per_byte: int = 0
    inflight_bytes_max: int = 0

    def initial_state(self) -> Any:
        return None

    def observe(self, state: Any, seen: Seen) -> Any:
        return state

    def propose(self, state: Any, now_us: int) -> tuple[Any, tuple[PrefetchIntent, ...]]:
        return state, ()
