"""How many requests each node had over time, from what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from kvshare_research.core.nouns import Outcome, Status

STEPS = 120


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """Mean requests on each node (sent there and not ended) in each of equal steps of the run."""

    step_us: float
    requests: tuple[tuple[float, ...], ...]  # [node][step]

    @property
    def imbalance(self) -> float:
        """The busiest node's mean over the mean of all; 1: all alike."""
        means = np.array(self.requests).mean(axis=1)
        return float(means.max() / means.mean()) if means.any() else 1.0


def node_load(outcomes: Sequence[Outcome], node_count: int, steps: int = STEPS) -> NodeLoad | None:
    """Of the served requests of one run, from the first arrival to the last end; None if none was served.

    A request counts for its share of a step, so the steps of all nodes add up to the time that all requests took.
    """
    rows = [o for o in outcomes if o.status == Status.DONE]
    if not rows:
        return None
    begins = np.array([o.arrival_us for o in rows], np.float64)
    ends = begins + np.array([max(o.end_to_end_us, o.ttft_us) for o in rows], np.float64)
    first = float(begins.min())
    width = max(1.0, float(ends.max()) - first) / steps
    edges = first + width * np.arange(steps + 1)
    found = np.zeros((max(node_count, 1 + max(o.executor for o in rows)), steps))
    for outcome, begin, end in zip(rows, begins.tolist(), ends.tolist(), strict=True):
        low, high = (min(steps - 1, int((at - first) // width)) for at in (begin, end))
        inside = np.minimum(end, edges[low + 1 : high + 2]) - np.maximum(begin, edges[low : high + 1])
        found[outcome.executor, low : high + 1] += np.maximum(0.0, inside) / width
    return NodeLoad(step_us=width, requests=tuple(tuple(row) for row in found.tolist()))
