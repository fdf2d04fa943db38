"""Debt order: who stores more new blocks than its allowance pays with its own blocks first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import BlockView, Retention

US_PER_S = 1_000_000
_CLASSES = 4  # a block of debt outweighs every class: probation 0, normal 1, reused 2
_PER_US = 1e-13  # times stay below 10^13 us, so that they order blocks within a class


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixShieldRetention(Retention):
    """The account deepest in debt gives first, of it what was reused least, of that the least recently used.

    PrefixShield (arXiv 2608.01657): each tenant has a token bucket of `burst_blocks`, refilled by
    `refill_blocks_per_s`, charged only for newly stored full blocks, and it may go negative. A block is on probation,
    normal after a reuse, reused after two; debt blocks promotion, here: while an account is in debt all its blocks
    count as on probation. What differs: the debt is not projected by one per victim within one admission, and a tenant
    is an account, so that a shared scope pays for itself.
    """

    refill_blocks_per_s: float
    burst_blocks: float

    ages: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.refill_blocks_per_s <= 0:
            raise ConfigError(f"`refill_blocks_per_s` is `{self.refill_blocks_per_s}`, expected more than 0")

    def refilled(self, balance_blocks: float, elapsed_us: int) -> float:
        return min(self.burst_blocks, balance_blocks + self.refill_blocks_per_s * elapsed_us / US_PER_S)

    def score(self, block: BlockView, now_us: int) -> float:
        debt = max(0.0, -block.balance_blocks)
        promoted = 0 if debt else min(block.use_count, 2)
        return promoted - _CLASSES * debt + block.used_us * _PER_US
