"""llm-d with peer-to-peer pulls: placed by its profile, then pulled from the peer that has most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .llmd_profile import LlmdProfile
from .rows import deepest_pull


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LlmdP2p(Selector):
    """The node of `LlmdProfile`; what a peer has beyond it is pulled, from `pull_tokens_min` on; changes nothing.

    llm-d's `p2p-source-producer` (llm-d-router, issues 1923 and 2443): the source is the one peer with the most cached
    tokens, and the threshold its `minCachedTokenDelta`, 1 as it comes; 13,600 was measured for one model. Neither the
    link nor the load of the two plays a part. Ties are broken by chance.
    """

    prefix_weight: float = 2.0
    queue_weight: float = 1.0
    kv_weight: float = 1.0
    pull_tokens_min: int = 1

    def __post_init__(self) -> None:
        if self.pull_tokens_min < 1:
            raise ConfigError(f"`pull_tokens_min` is {self.pull_tokens_min}, expected >= 1")

    def select(self, table: QuoteTable) -> int:
        """The PULL row of that node if it brings enough, else the row that serves there with what it has."""
        profile = LlmdProfile(
            prefix_weight=self.prefix_weight, queue_weight=self.queue_weight, kv_weight=self.kv_weight
        )
        staying = profile.select(table)
        pull = deepest_pull(table, int(table.executor[staying]))
        if pull is None or int(table.pulled_blocks[pull]) * table.block_tokens < self.pull_tokens_min:
            return staying
        return pull
