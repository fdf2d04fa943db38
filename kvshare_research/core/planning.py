"""From a request to a plan: lookup -> judge -> quote -> select, and nothing else."""

from __future__ import annotations

from msgspec import Struct

from . import messages as m
from .loads import Service
from .nouns import COLUMNS, COMPONENTS, NO_NODE, Action, Chain, Match, MissReason, Plan, QuoteTable, Verdict
from .ports import UnderWay
from .runs import longest_blocks
from .shaping import AT_ONCE, Due

ACTIONS = tuple(Action)
NAMES = COLUMNS[COMPONENTS]
TTFT_AT = COLUMNS.index("ttft_us")


class Decision(Struct, frozen=True, kw_only=True, gc=False):
    """A plan and what led to it: enough to explain every token that was not reused."""

    plan: Plan
    match: Match
    verdict: Verdict
    best_blocks: int
    refusal: str = ""  # why the selector would turn the request away; empty: it lets it in
    due: Due = AT_ONCE
    standing: Service  # what it takes as its shape shows it: of an answer without one, what it is quoted to take


class Pending(Struct, kw_only=True, gc=False):
    """A request the router has dispatched and not yet recorded."""

    arrived: m.Arrived
    decision: Decision
    received_us: int
    service: Service
    returned: bool = False
    first_token_us: int | None = None

    @property
    def under_way(self) -> UnderWay:
        plan = self.decision.plan
        return UnderWay(plan.executor, self.first_token_us, self.received_us + plan.quoted_ttft_us)


def plan_of(table: QuoteTable, row: int, request_id: int) -> Plan:
    """The plan that a row of the table stands for; raises AssertionError on a row that is no way of serving."""
    assert 0 <= row < len(table), f"selector chose row {row} of {len(table)}"
    values: list[int] = table.cells[:, row].tolist()
    action, executor, _, resident, _, front = values[:6]
    assert executor != NO_NODE, "selector chose a row without an executor"
    return Plan(
        request_id=request_id,
        action=ACTIONS[action],
        executor=executor,
        resident_blocks=resident,
        front_blocks=front,
        pieces=table.pieces[row],
        quoted_ttft_us=values[TTFT_AT],
        quoted_us=tuple(zip(NAMES, values[COMPONENTS], strict=True)),
    )


def missed_tokens(
    decision: Decision, chain: Chain, prompt_tokens: int, reused_blocks: int, *, was_evicted: bool, collided: bool
) -> tuple[tuple[MissReason, int], ...]:
    """Every prompt token that was computed, by the reason it was not reused; the counts sum to the computed tokens.

    From the front: what the plan reused and the worker could not (STALE, or COLLISION), what the selector left
    (NOT_WORTH), what the reader may not see (the verdict's reason), what nobody holds (EVICTED or UNKNOWN), and the
    tail.
    """
    size = chain.block_tokens
    usable = min(chain.block_count, (prompt_tokens - 1) // size)
    known = longest_blocks(decision.match.runs)
    denied = decision.verdict.denied[0][0] if decision.verdict.denied else MissReason.DENIED_SCOPE
    bounds = (
        (MissReason.COLLISION if collided else MissReason.STALE, min(usable, decision.plan.reused_blocks)),
        (MissReason.NOT_WORTH, min(usable, decision.best_blocks)),
        (denied, min(usable, known)),
        (MissReason.EVICTED if was_evicted else MissReason.UNKNOWN, usable),
    )
    rows: list[tuple[MissReason, int]] = []
    at = reused_blocks
    for reason, end in bounds:
        if end > at:
            rows.append((reason, (end - at) * size))
            at = end
    tail = prompt_tokens - at * size
    if tail > 0:
        rows.append((MissReason.LAST_TOKEN if tail == size else MissReason.PARTIAL_BLOCK, tail))
    return tuple(rows)
