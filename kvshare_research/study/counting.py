"""From what a driver played to a `CaseResult`: labels, outcomes with their hashing time, what was stored and moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np
from msgspec.structs import replace

from kvshare_research.core.nouns import Outcome
from kvshare_research.core.router import Router
from kvshare_research.driver.cluster import Played
from kvshare_research.metrics.records import CaseResult, Counters, Label

from .plan import IDLE, Case
from .prompts import Prompt


def outcomes(played: Played, prompts: Sequence[Prompt], key: bytes) -> tuple[Outcome, ...]:
    """The outcomes with warm-up marked, the hashing of the prompt counted into decision, TTFT and end to end, and a
    digest in the place of what was answered."""
    by_id = {p.request.request_id: p for p in prompts}
    return tuple(told(outcome, by_id[outcome.request_id], key) for outcome in played.outcomes)


def told(outcome: Outcome, prompt: Prompt, key: bytes) -> Outcome:
    """One outcome as `outcomes` gives it."""
    extra = prompt.hash_us
    return replace(
        outcome,
        warmup=prompt.warmup,
        decide_us=outcome.decide_us + extra,
        ttft_us=outcome.ttft_us + extra if outcome.ttft_us else 0,
        end_to_end_us=outcome.end_to_end_us + extra,
        output_tokens=(),
        output_digest=digest_of(outcome.output_tokens, key),
    )


def digest_of(tokens: Sequence[int], key: bytes) -> str:
    """Equal for equal answers, and of no use to who has not got the key; empty where nothing was answered."""
    if not tokens:
        return ""
    return blake2b(np.array(tokens, "<u4").tobytes(), digest_size=16, key=key).hexdigest()


def counters(played: Played, prompts: Sequence[Prompt], router: Router | None, block_bytes: int) -> Counters:
    """Bytes on the wire against bytes planned, and what each node and the fleet hold at the end of the case."""
    named = {p.chain.block_hash(i): content for p in prompts for i, content in enumerate(p.contents)}
    nodes = range(len(router.replica.views)) if router is not None else range(0)
    held = [[named.get(row[1], row[1]) for row in router.replica.rows(n)] for n in nodes] if router is not None else []
    wire = sum(c.get("payload_bytes_received", 0) for c in played.counters.values())
    block_tokens = prompts[0].chain.block_tokens
    planned = sum(o.pulled_tokens // block_tokens for o in played.outcomes) * block_bytes
    others = _summed(played.counters)
    if router is not None:
        others |= {f"index: {name}": count for name, count in router.replica.counters.items()}
    return Counters(
        wire_bytes=wire,
        planned_bytes=planned,
        block_bytes=block_bytes,
        node_stored_blocks=tuple(len(rows) for rows in held),
        node_unique_blocks=tuple(len(set(rows)) for rows in held),
        fleet_unique_blocks=len({content for rows in held for content in rows}),
        wall_us=played.elapsed_us,
        others=tuple(sorted(others.items())),
    )


def _summed(given: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for row in given.values():
        for name, count in row.items():
            total[name] = total.get(name, 0) + count
    return total


def _compared(case: Case) -> tuple[tuple[str, str], ...]:
    """The axes of the case that are no column of their own."""
    given = (("disclosure", case.disclosure), ("prefetch", case.prefetch))
    return tuple((axis, value) for axis, value in given if value is not None)


def result(
    case: Case,
    *,
    label: Label,
    settings: Mapping[str, str],
    workload: str,
    overlap: float | None,
    outcomes: tuple[Outcome, ...],
    counters: Counters,
    rate_per_s: float | None,
    expected: int,
    content_known: bool = True,
    partial_reason: str = "",
) -> CaseResult:
    """The record of one case. `settings` are the effective selector, tenancy and link."""
    return CaseResult(
        label=label,
        selector=settings["selector"],
        tenancy=settings["tenancy"],
        link=settings["link"],
        seed=case.seed,
        overlap=overlap,
        utilisation=None if case.utilisation == IDLE else case.utilisation,
        recorded=case.recorded,
        rate_per_s=rate_per_s,
        workload=workload,
        content_known=content_known,
        extra=(("block", case.block.name), *_compared(case)),
        outcomes=outcomes,
        counters=counters,
        expected_requests=expected,
        partial=bool(partial_reason),
        partial_reason=partial_reason,
    )
