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


def epsilon_lower(
    hits_in: int, hits_out: int, trials: int, delta: float, confidence: float = 0.99, trials_out: int | None = None
) -> float:
    """The largest epsilon ruled out by an event seen `hits_in` times of `trials` with the unit and `hits_out` without
    (of as many, or of `trials_out`).

    Privacy says P_in(E) <= e^eps P_out(E) + delta, also the other way round and for the complement of E.
    """
    alpha = (1 - confidence) / 2
    best = 0.0
    inside, outside = (hits_in, trials), (hits_out, trials if trials_out is None else trials_out)
    rows = ((inside, outside), (outside, inside))
    complements = tuple(tuple((n - k, n) for k, n in row) for row in rows)
    for (one, of), (other, of_others) in (*rows, *complements):
        low, high = clopper_pearson(one, of, alpha)[0], clopper_pearson(other, of_others, alpha)[1]
        if low > delta:
            best = max(best, math.log((low - delta) / high))
    return best


RESAMPLES = 2_000


def area(inside: NDArray[np.float64], outside: NDArray[np.float64], seed: int = 0) -> tuple[float, float, float]:
    """The chance that a score of one with the unit is above one without, ties half, and its 95 % bootstrap interval."""
    above = (inside[:, None] > outside[None, :]) + 0.5 * (inside[:, None] == outside[None, :])
    rng = np.random.default_rng(seed)
    weights_in = rng.multinomial(len(inside), np.full(len(inside), 1 / len(inside)), RESAMPLES) / len(inside)
    weights_out = rng.multinomial(len(outside), np.full(len(outside), 1 / len(outside)), RESAMPLES) / len(outside)
    drawn = ((weights_in @ above) * weights_out).sum(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(above.mean()), float(low), float(high)


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
