"""Answers of one shape: how long an answer is held back, so that its time does not tell what others have run.

The worker computes as soon as it can. Only what the client is told waits, at the router, so shape costs time to first
token and no work. When an answer is due follows from the quote, and from what the reader may read of the prompt; never
from what was found, so it is the same for a hit and for a miss.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, final

from msgspec.structs import replace

from .directory import Directory
from .judging import cut
from .nouns import NO_NODE, PERMILLE, Action, Chain, Outcome, QuoteTable, Verdict
from .rights import GROUP

RECOMPUTED = frozenset({Action.RECOMPUTE})


class ShapeKind(IntEnum):
    """Whose presence the time of an answer may show."""

    NONE = 0  # an answer is told when it is there
    PAD = 1  # of prompts with a group's text: not before its members' text would have been computed
    CONSTANT = 2  # not before all of the prompt would have been computed, on the node where that takes longest


class Due(NamedTuple):
    """When an answer may be told: `after_us` its request was received. Of what it reused, its tenant is told of the
    first `shown_blocks` at most; None: all, and which node served it."""

    after_us: int
    shown_blocks: int | None

    def later(self, other: Due) -> Due:
        """Of two, for a request that was decided twice."""
        return self if self.after_us >= other.after_us else other


AT_ONCE = Due(0, None)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The configured shape. `margin_permille` of the quote is waited for: what is above 1000 covers its error."""

    kind: ShapeKind = ShapeKind.NONE
    margin_permille: int = PERMILLE

    def shown_blocks(self, chain: Chain, directory: Directory) -> int | None:
        """Blocks of the prompt whose reuse may show; None: all of them."""
        if self.kind == ShapeKind.CONSTANT:
            return 0
        return group_start(chain, directory) if self.kind == ShapeKind.PAD else None

    def due(self, table: QuoteTable, row: int, shown_blocks: int) -> Due:
        """By the quote of a request as if no more than `shown_blocks` of it were held anywhere, and the row taken."""
        if self.kind == ShapeKind.CONSTANT:
            quoted_us = int(table.ttft_us[table.action == Action.RECOMPUTE].max())
        else:
            quoted_us = int(table.ttft_us[row])
        return Due(-(-quoted_us * self.margin_permille // PERMILLE), shown_blocks)


UNSHAPED = Shape()


def group_start(chain: Chain, directory: Directory) -> int | None:
    """The first block of the prompt that a group shares; None if there is none."""
    start = 0
    for scope_id, end in chain.scope_ends:
        if directory.scopes[scope_id].level == GROUP:
            return start
        start = end
    return None


def shown(verdict: Verdict, block_count: int) -> Verdict:
    """The verdict as if no block from `block_count` on were held by anybody."""
    return replace(verdict, runs=tuple(cut(run, block_count) for run in verdict.runs if block_count > 0), denied=())


def told(theirs: Outcome, ttft_us: int, end_to_end_us: int, due: Due, block_tokens: int) -> dict[str, int]:
    """What a tenant is told of an answer, by the names of an `Outcome`: no sooner than it is due, every token as much
    later as the first; and what it may be told of reuse and node."""
    held = max(0, due.after_us - ttft_us)
    reused = theirs.resident_tokens + theirs.routed_tokens + theirs.pulled_tokens
    return {
        "ttft_us": ttft_us + held,
        "end_to_end_us": end_to_end_us + held,
        "held_us": held,
        "shape_us": due.after_us,
        "shown_tokens": reused if due.shown_blocks is None else min(reused, due.shown_blocks * block_tokens),
        "shown_executor": theirs.executor if due.shown_blocks is None else NO_NODE,
    }
