"""Lower bounds on epsilon from what was observed: many runs of a mechanism, or one run with many canaries."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def clopper_pearson(hits: int, trials: int, alpha: float) -> tuple[float, float]:
    """Exact bounds on a probability, each missed with probability at most `alpha`."""
    from scipy.stats import beta

    low = float(beta.ppf(alpha, hits, trials - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - alpha, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


def epsilon_lower(hits_in: int, hits_out: int, trials: int, delta: float, confidence: float = 0.99) -> float:
    """The largest epsilon ruled out by an event seen `hits_in` times of `trials` with the unit and `hits_out` without.

    Privacy says P_in(E) <= e^eps P_out(E) + delta, also the other way round and for the complement of E.
    """
    alpha = (1 - confidence) / 2
    best = 0.0
    rows = ((hits_in, hits_out), (hits_out, hits_in))
    for one, other in (*rows, *((trials - a, trials - b) for a, b in rows)):
        low, high = clopper_pearson(one, trials, alpha)[0], clopper_pearson(other, trials, alpha)[1]
        if low > delta:
            best = max(best, math.log((low - delta) / high))
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """A one-run bound: `right` of `guesses` about `canaries` coin-flip canaries were right."""

    epsilon: float
    guesses: int
    right: int
    canaries: int
    auc: float


def one_run_p(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses are under (epsilon, delta) (Steinke, Nasr and Jagielski 2023, theorem 5.2)."""
    from scipy.stats import binom

    q = 1 / (1 + math.exp(-epsilon))
    p = float(binom.sf(right - 1, guesses, q))
    tail = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, q))
    worst = float((tail / np.arange(1, right + 1)).max()) if right else 0.0
    return min(1.0, p + 2 * canaries * delta * worst)


def one_run_epsilon(canaries: int, guesses: int, right: int, delta: float, alpha: float = 0.05) -> float:
    """The largest epsilon rejected at level `alpha`."""
    from scipy.optimize import brentq

    def excess(epsilon: float) -> float:
        return one_run_p(canaries, guesses, right, epsilon, delta) - alpha

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0 and high < 60:
        high *= 2
    return float(brentq(excess, 0, high)) if excess(high) >= 0 else high


def one_run_bound(
    scores: NDArray[np.float64], included: NDArray[np.bool_], delta: float, alpha: float = 0.05
) -> OneRun:
    """Guess "in" for the highest scores and "out" for the lowest, abstain between; Bonferroni over a few sizes."""
    count = len(scores)
    order = np.argsort(scores, kind="stable")
    sizes = sorted({max(1, int(count * share)) for share in (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)})
    inside, outside = scores[included], scores[~included]
    auc = float((inside[:, None] > outside[None, :]).mean()) if len(inside) and len(outside) else 0.5
    best = OneRun(epsilon=0.0, guesses=0, right=0, canaries=count, auc=auc)
    for size in sizes:
        right = int((~included[order[:size]]).sum() + included[order[-size:]].sum())
        epsilon = one_run_epsilon(count, 2 * size, right, delta, alpha / len(sizes))
        if epsilon > best.epsilon:
            best = OneRun(epsilon=epsilon, guesses=2 * size, right=right, canaries=count, auc=auc)
    return best
