"""Recency and frequency in one number: every doubling of uses is worth so much recency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.ports import BlockView, Retention


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LrfuRetention(Retention):
    """Keeps by last use plus `doubling_us` for each time the number of uses doubled (the idea of LRFU, Lee et al.,
    IEEE Trans. Computers 50(12), 2001; the logarithm keeps an old favourite from staying for ever)."""

    doubling_us: int

    ages: ClassVar[bool] = False

    def score(self, block: BlockView, now_us: int) -> float:
        return block.used_us + self.doubling_us * math.log2(1 + block.use_count)
