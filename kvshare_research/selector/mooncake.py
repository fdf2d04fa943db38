"""Least predicted TTFT inside one data centre, replicating a prefix that is much longer elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Action, QuoteTable
from kvshare_research.core.ports import Selector, UnderWay

from .rejection import EarlyRejection, decoding_at
from .rows import first_per_executor, least, rows_of, stays


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mooncake(Selector):
    """Conductor's choice of a prefill node; changes nothing.

    Mooncake (FAST'25, arXiv 2407.00079), Algorithm 1: a node whose own run is `balancing_threshold` times shorter than
    the longest anywhere is priced with a transfer of the longest, T_transfer + T_queue + T_prefill(prompt, longest),
    else with its own run, T_queue + T_prefill(prompt, own). The least wins; ties go to the lowest node. The client's
    round trip is no part of it. The paper leaves the threshold to be set by hand; 2 is ours. Where PULL is not allowed,
    or the longest run has no PULL row, a node is priced with its own run. Hot prefixes are replicated by those pulls,
    as there. Early rejection (section 7) is `rejection`, where the node that prefills also decodes: the decode load is
    that of the chosen node, and every answer is expected to take what this request's would, decoding alone.
    """

    may_refuse: ClassVar[bool] = True

    balancing_threshold: float = 2.0
    rejection: EarlyRejection = field(default_factory=EarlyRejection)

    def __post_init__(self) -> None:
        if self.balancing_threshold < 1:
            raise ConfigError(f"`balancing_threshold` is {self.balancing_threshold}, expected >= 1")

    def select(self, table: QuoteTable) -> int:
        """The row of the node with the least sum: its PULL of the longest run, or what it has."""
        taken = stays(table)
        pulls = first_per_executor(
            table, rows_of(table, Action.PULL), -table.pulled_blocks, table.ttft_us, table.source
        )
        at = np.searchsorted(table.executor[taken], table.executor[pulls])  # every executor has a row to stay
        worth = table.best_blocks > self.balancing_threshold * table.resident_blocks[taken[at]]
        taken[at[worth]] = pulls[worth]
        time_us = table.fetch_us + table.queue_us + table.prefill_us - table.overlap_us + table.merge_us
        return least(taken, time_us, table.executor)

    def refuses(self, table: QuoteTable, row: int, under_way: Sequence[UnderWay], now_us: int) -> str:
        """By the predicted TTFT of the row, and by the requests under way on its node."""
        if self.rejection.mode == "none":
            return ""
        ttft_us, here = int(table.ttft_us[row]), [u for u in under_way if u.node == table.executor[row]]
        decoding = [u.first_token_us for u in here if u.first_token_us is not None]
        prefilling = [u.expected_us for u in here if u.first_token_us is None]
        then = decoding_at(now_us + ttft_us, decoding, prefilling, table.decode_us)
        return self.rejection.refusal(ttft_us, len(decoding) + 1, then + 1)
