"""What a weight vector is judged by: tails of TTFT and of end-to-end time over all requests, and schedule slip.

GORGO v3's tuner minimised the p95 of TTFT of the requests that had been answered, and learned to send everything to
one node (queue weight 0: TTFT p95 1.07 s, end-to-end p95 12.5 s). Here every request counts, also one that ends long
after the window; a batch that decodes slowly shows in the end-to-end tail, and a backlog in the slip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

QUANTILE = 0.95


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tails:
    """Of one window under one or more candidates (arrays of equal length): seconds."""

    ttft_s: NDArray[np.float64]
    e2e_s: NDArray[np.float64]
    slip_s: NDArray[np.float64]
    horizon_s: float


def tails(arrival_ms: ArrayLike, ttft_ms: ArrayLike, e2e_ms: ArrayLike, warmup: int = 0) -> Tails:
    """The tails of requests (rows) under candidates (columns); the first `warmup` rows count for the slip only.

    The slip is how long after the last arrival the last request ends. A request that was never served has infinite
    times, and so has the candidate that did not serve it.
    """
    arrival = np.asarray(arrival_ms, np.float64)
    ttft, e2e = (_columns(values) for values in (ttft_ms, e2e_ms))
    ends = (arrival[:, None] + e2e).max(axis=0)

    def tail_s(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """An order statistic, since values may be infinite; one lost request among the rows makes the tail infinite."""
        found = np.quantile(values[warmup:], QUANTILE, axis=0, method="higher") / 1e3
        return np.where(np.isinf(values).any(axis=0), np.inf, found)

    return Tails(
        ttft_s=tail_s(ttft), e2e_s=tail_s(e2e), slip_s=np.maximum(0.0, ends - arrival[-1]) / 1e3,
        horizon_s=max(1e-3, float(arrival[-1] - arrival[0]) / 1e3),
    )  # fmt: skip


def loss(of: Tails, reference: Tails) -> NDArray[np.float64]:
    """1/3 of each tail relative to the reference, and 1/3 of what the slip adds relative to the window: 1 is alike."""
    late = (of.slip_s - reference.slip_s) / of.horizon_s
    worse: NDArray[np.float64] = (of.ttft_s / reference.ttft_s + of.e2e_s / reference.e2e_s + 1.0 + late) / 3.0
    return worse


def _columns(values: ArrayLike) -> NDArray[np.float64]:
    found = np.asarray(values, np.float64)
    return found[:, None] if found.ndim == 1 else found
