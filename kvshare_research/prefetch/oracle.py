"""Knows the future because it is told: the bound that no predictor passes. For experiments on recorded arrivals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, final

from kvshare_research.core.foresight import prefix_blocks
from kvshare_research.core.nouns import Chain, Request
from kvshare_research.core.ports import Prefetch, PrefetchIntent, Seen


@dataclass(slots=True)
class _State:
    future: list[tuple[Request, Chain]] = field(default_factory=list)  # the next one last
    now_us: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle(Prefetch):
    """Moves each request's prefix to its ingress up to `horizon_us` before it arrives; told nothing, it does none."""

    price_ps_per_byte: int
    inflight_bytes_max: int
    horizon_us: int

    def initial_state(self) -> Any:
        return _State()

    def tell(self, state: Any, arrivals: Iterable[tuple[Request, Chain]]) -> None:
        """What will arrive, with times on the router's clock."""
        state.future = sorted(arrivals, key=lambda row: -row[0].arrival_us)

    def observe(self, state: Any, seen: Seen) -> Any:
        return state

    def propose(self, state: Any, now_us: int) -> tuple[Any, tuple[PrefetchIntent, ...]]:
        out = []
        while state.future and state.future[-1][0].arrival_us <= now_us + self.horizon_us:
            request, chain = state.future.pop()
            blocks = prefix_blocks(request, chain)
            if blocks and request.arrival_us > now_us:
                out.append(
                    PrefetchIntent(
                        tenant_id=request.tenant_id,
                        user_id=request.user_id,
                        chain=chain,
                        block_count=blocks,
                        node=request.ingress,
                        deadline_us=now_us + self.horizon_us,
                        probability=1.0,
                    )
                )
        return state, tuple(out)
