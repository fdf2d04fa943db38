"""Least predicted TTFT inside one data centre, replicating a prefix that is much longer elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Action, QuoteTable
from kvshare_research.core.ports import Selector, UnderWay

from .rejection import EarlyRejection, decoding_at
from .rows import first_per_executor, least, rows_of, stays

MEMORY = 50  # answers that the average decode time tells of


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
    that of the chosen node, and every answer is expected to decode for as long as those before did on average:
    `decode_us`, which its router's state gives; until one has ended, as long as this request's would alone.
    """

    balancing_threshold: float = 2.0
    rejection: EarlyRejection = field(default_factory=EarlyRejection)
    decode_us: float | None = None

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

    @property
    def may_refuse(self) -> bool:
        """Whether its rule ever turns anybody away."""
        return self.rejection.mode != "none"

    @property
    def learns(self) -> bool:
        """How long answers decode, where that is asked."""
        return self.rejection.mode == "predicted"

    def refuses(self, table: QuoteTable, row: int, under_way: Sequence[UnderWay], now_us: int) -> str:
        """By the predicted TTFT of the row, and by the requests under way on its node."""
        ttft_us, here = int(table.ttft_us[row]), [u for u in under_way if u.node == table.executor[row]]
        decoding = [u.first_token_us for u in here if u.first_token_us is not None]
        prefilling = [u.expected_us for u in here if u.first_token_us is None]
        decode_us = table.decode_us if self.decode_us is None else self.decode_us
        then = decoding_at(now_us + ttft_us, decoding, prefilling, decode_us)
        return self.rejection.refusal(ttft_us, len(decoding) + 1, then + 1)

    def initial_state(self) -> float | None:
        """No answer has ended, unless one knows better."""
        return self.decode_us

    def now(self, state: float | None) -> Selector:
        """With the average so far."""
        return replace(self, decode_us=state)

    def ended(self, state: float | None, decode_us: int) -> float | None:
        """The average moves by a fiftieth of what one answer differs."""
        return float(decode_us) if state is None else state + (decode_us - state) / MEMORY
