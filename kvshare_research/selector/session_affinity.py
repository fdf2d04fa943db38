"""The node that the start of the prompt names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import executors_of, mixed, stay


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAffinity(Selector):
    """Serves prompts with an equal start on one node: hash modulo the number of nodes; changes nothing.

    GORGO's simple session affinity (arXiv 2602.11688, section on baselines): hash(first 256 tokens) mod N. Load plays
    no part, and where all prompts begin alike one node gets them all.
    """

    def select(self, table: QuoteTable) -> int:
        """The row of that node."""
        nodes = executors_of(table)
        return stay(table, nodes[mixed(table.start) % len(nodes)])
