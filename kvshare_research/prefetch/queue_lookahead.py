"""What waiting requests will need: known for certain, no model (as CachedAttention, arXiv 2403.19708, section 3.2).

A request behind others on its executor starts its fetches only when it is admitted; this starts them at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import Prefetch, PrefetchIntent, Seen


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLookahead(Prefetch):
    """Proposes the whole chain of each request that will wait and whose plan pulls something."""

    price_ps_per_byte: int
    inflight_bytes_max: int
    horizon_us: int
    admitted_max: int  # requests that a worker admits at once: one behind fewer starts its fetches by itself

    def __post_init__(self) -> None:
        if self.admitted_max < 1:
            raise ConfigError(f"`prefetch.admitted_max` is `{self.admitted_max}`, expected at least 1")

    def initial_state(self) -> Any:
        return []

    def observe(self, state: Any, seen: Seen) -> Any:
        if seen.queued_requests >= self.admitted_max and seen.pulled_blocks > 0 and seen.chain.block_count > 0:
            state.append(seen)
        return state

    def propose(self, state: Any, now_us: int) -> tuple[Any, tuple[PrefetchIntent, ...]]:
        intents = tuple(
            PrefetchIntent(
                tenant_id=seen.tenant_id,
                user_id=seen.user_id,
                chain=seen.chain,
                block_count=seen.chain.block_count,
                node=seen.executor,
                deadline_us=seen.now_us + self.horizon_us,
                probability=1.0,
            )
            for seen in state
        )
        return [], intents
