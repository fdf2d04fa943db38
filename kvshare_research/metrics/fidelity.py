"""How far a simulation is from what it foretells: the same requests, measured and simulated, by component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from kvshare_research.core.nouns import Outcome, Status

from .records import CaseKey, CaseResult

PARTS = ("queue_us", "fetch_us", "prefill_us", "merge_us")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """One case over all its seeds. Pairs are (measured, simulated), in us; `parts` are means, in the order of PARTS."""

    key: CaseKey
    pairs: int
    p50_us: tuple[float, float]
    p95_us: tuple[float, float]
    parts_us: tuple[tuple[float, float], ...]
    request_error: float  # median over requests of |simulated - measured| / measured TTFT
    same_executor: float  # share of requests that both served on the same node


def fidelities(results: Sequence[CaseResult]) -> list[Fidelity]:
    """A row for each case that has a simulated twin; seeds of one case are pooled."""
    pooled: dict[CaseKey, list[tuple[Outcome, Outcome]]] = {}
    for case in results:
        if case.simulated:
            pooled.setdefault(case.key, []).extend(paired(case))
    return [_row(key, pairs) for key, pairs in pooled.items() if pairs]


def paired(case: CaseResult) -> list[tuple[Outcome, Outcome]]:
    """(measured, simulated) of every request that counts and that both have answered."""
    twins = {outcome.request_id: outcome for outcome in case.simulated if outcome.status == Status.DONE}
    return [(own, twins[own.request_id]) for own in case.done() if own.request_id in twins]


def _row(key: CaseKey, pairs: Sequence[tuple[Outcome, Outcome]]) -> Fidelity:
    def columns(name: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return np.array([[getattr(a, name), getattr(b, name)] for a, b in pairs], np.float64)

    ttft = columns("ttft_us")
    p50, p95 = (tuple(np.quantile(ttft, q, axis=0).tolist()) for q in (0.5, 0.95))
    return Fidelity(
        key=key,
        pairs=len(pairs),
        p50_us=p50,
        p95_us=p95,
        parts_us=tuple(tuple(columns(name).mean(axis=0).tolist()) for name in PARTS),
        request_error=float(np.median(np.abs(ttft[:, 1] - ttft[:, 0]) / ttft[:, 0])),
        same_executor=float(np.mean([a.executor == b.executor for a, b in pairs])),
    )
