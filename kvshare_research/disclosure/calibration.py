"""How much noise and which threshold make a release (epsilon, delta) differentially private: exact calibrations.

Unit-level, add or remove one unit. A unit votes for at most `l0` names; released is the set of names, no counts.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_TABLE_MAX = 1 << 16


def gaussian_delta(epsilon: float, sigma: float, sensitivity: float) -> float:
    """The least delta of Gaussian noise (Balle and Wang 2018, theorem 8): Phi(a - b) - e^eps Phi(-a - b), where
    a = sensitivity / (2 sigma), b = epsilon sigma / sensitivity. The product is formed in logs: e^eps overflows."""
    from scipy.special import log_ndtr, ndtr

    a, b = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    return float(ndtr(a - b) - np.exp(epsilon + log_ndtr(-a - b)))


@lru_cache(maxsize=256)
def analytic_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """The least sigma with `gaussian_delta` <= delta."""
    from scipy.optimize import brentq

    return float(
        brentq(
            lambda s: gaussian_delta(epsilon, s, sensitivity) - delta, 1e-3 * sensitivity, 1e4 * sensitivity, xtol=1e-9
        )
    )


@lru_cache(maxsize=256)
def weighted_threshold(delta: float, l0: int, sigma: float) -> float:
    """DPSU-Gaussian (Gopi et al. 2020, algorithm 4): a unit with t <= l0 votes gives 1/sqrt(t) each. With this
    threshold, names of one unit alone are released with probability at most `delta`, whatever t is."""
    from scipy.special import ndtri

    return float(max(1 / math.sqrt(t) + sigma * ndtri((1 - delta) ** (1 / t)) for t in range(1, l0 + 1)))


@lru_cache(maxsize=64)
def optimal_probabilities(epsilon: float, delta: float) -> NDArray[np.float64]:
    """Keep probability by number of units, for one vote a unit (Desfontaines et al. 2021, theorem 1): the largest of
    any (epsilon, delta) mechanism. Numbers past the end are kept for certain."""
    table = [0.0]
    while table[-1] < 1 and len(table) < _TABLE_MAX:
        p = table[-1]
        table.append(min(math.exp(epsilon) * p + delta, 1 - math.exp(-epsilon) * (1 - p - delta), 1.0))
    table[-1] = 1.0 if len(table) < _TABLE_MAX else table[-1]
    return np.array(table)


def tree_levels(checks: int) -> int:
    """How many nodes of the binary tree over `checks` leaves one vote is part of."""
    return checks.bit_length()


@lru_cache(maxsize=64)
def sparse_vector_threshold(epsilon: float, delta: float, checks: int) -> float:
    """Least threshold at which a name that one unit holds passes any of `checks` tests with probability <= delta.

    AboveThreshold with monotone counts (Lyu, Su and Li 2017): rho ~ Lap(2/eps) once, nu ~ Lap(2/eps) at each test;
    released when 1 + nu >= threshold + rho. Integrated over rho numerically.
    """
    from scipy.optimize import brentq
    from scipy.stats import laplace

    scale = 2 / epsilon
    split = laplace.ppf(1e-4, scale=scale)
    tail = np.linspace(laplace.ppf(1e-13, scale=scale), split, 4000)
    body = laplace.ppf((np.arange(4000) + 0.5) / 4000, scale=scale)
    grid = np.concatenate([tail, body[body > split]])
    density = laplace.pdf(grid, scale=scale)

    def passes(threshold: float) -> float:
        once = laplace.sf(threshold - 1 + grid, scale=scale)
        return float(np.trapezoid(-np.expm1(checks * np.log1p(-once)) * density, grid))

    return float(brentq(lambda t: passes(t) - delta, 1, 1 + 60 * scale * (1 + math.log(checks)), xtol=1e-6))
