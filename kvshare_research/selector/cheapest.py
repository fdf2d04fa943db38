"""Whatever is quoted to answer first, among all ways, with a price on holding up others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.costing import priced_us
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import cheapest


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cheapest(Selector):
    """The row of least price: route, pull from one or many, split or compute, in one comparison; changes nothing.

    The price is the quoted TTFT, and `weigh_delay_permille` thousandths of what the row's prefill takes from requests
    of its node whose answers it holds up (`core.costing.priced_us`); so at 0 the row of least TTFT, at 1000 the one
    that delays all together least. Where an answer keeps its engine to the end it is never held up, and the
    price is the TTFT. Ties go to the fewest bytes moved, then action, executor and source (`core.costing.better`), so
    computing wins its ties and the order of rows does not matter. This is the project's own selector; `actions`
    restricts what is quoted.
    """

    weigh_delay_permille: int = 300

    def __post_init__(self) -> None:
        if self.weigh_delay_permille < 0:
            raise ConfigError(f"`weigh_delay_permille` is `{self.weigh_delay_permille}`, expected 0 or more")

    @property
    def least_at_permille(self) -> int:
        return self.weigh_delay_permille

    def select(self, table: QuoteTable) -> int:
        """The best row under `core.costing.better`."""
        if len(table) == 1:
            return 0
        held_up = table.held_up_requests
        if self.weigh_delay_permille == 0 or not held_up.any():
            return cheapest(table)
        beside = held_up[table.executor]
        return cheapest(table, priced_us(table.ttft_us, table.prefill_us, beside, self.weigh_delay_permille))
