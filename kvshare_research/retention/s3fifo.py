"""Quick demotion: what was never reused goes before anything that was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.ports import BlockView, Retention


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class S3FifoRetention(Retention):
    """Blocks never reused go first, in order of storing; then the others by last use.

    That is what S3-FIFO (Yang et al., SOSP 2023) gains from: most blocks are used once, and a small queue lets them go
    early. Its ghost queue, which remembers evicted blocks, is left out: a score depends on the block alone.
    """

    ages: ClassVar[bool] = False

    def score(self, block: BlockView, now_us: int) -> float:
        return float(block.stored_us) if block.use_count == 0 else 1e15 + block.used_us
