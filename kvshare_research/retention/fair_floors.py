"""Max-min fair: room is taken from the account that holds most beyond its floor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.ports import BlockView, Retention

_PER_US = 1e-13  # times stay below 10^13 us, so that they only break ties between accounts of equal excess


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FairFloorsRetention(Retention):
    """The account furthest above its reservation gives first, its least recently used block.

    Taking from the largest excess is progressive filling seen from the other end: what accounts hold tends to the
    max-min fair shares (Bertsekas and Gallager, Data Networks, section 6.5.2) above the floors, and an account that
    never takes more than its share loses nothing to one that floods the pool. A shared scope is one account like any.
    """

    ages: ClassVar[bool] = True

    def score(self, block: BlockView, now_us: int) -> float:
        return block.account_reserved - block.account_used + block.used_us * _PER_US
