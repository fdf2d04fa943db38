"""Deficit longest prefix match: locality first, as long as no tenant gets further ahead than a quantum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import QueuedRequest, Schedule


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DlpmSchedule(Schedule):
    """The request with the fewest uncached tokens, among tenants served less than `quantum_tokens` ahead of the least.

    The deficit of the paper (Cao et al. 2025, "Locality-aware fair scheduling") is the quantum minus this lead. A
    large quantum is longest prefix match as SGLang schedules, a small one is VTC. Ties by arrival, then id.
    """

    quantum_tokens: int = 2_048

    def __post_init__(self) -> None:
        if self.quantum_tokens < 1:
            raise ConfigError(f"`quantum_tokens` is `{self.quantum_tokens}`, expected at least 1")

    def next(self, queue: Sequence[QueuedRequest], served_tokens: dict[int, int], now_us: int) -> int:
        least = min(served_tokens.get(request.tenant_id, 0) for request in queue)

        def rank(i: int) -> tuple[bool, int, int, int]:
            request = queue[i]
            ahead = served_tokens.get(request.tenant_id, 0) >= least + self.quantum_tokens
            return ahead, request.uncached_tokens, request.arrival_us, request.request_id

        return min(range(len(queue)), key=rank)
