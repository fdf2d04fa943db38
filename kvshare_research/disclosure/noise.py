"""Chance for the mechanisms. Values lie on a grid of 2^-20, so that no low bit of a float betrays what was added to.

`SystemNoise` draws exact discrete distributions from the system's entropy (Canonne, Kamath and Steinke 2020,
algorithms 1 to 3, in whole numbers only); `SeededNoise` is fast and repeatable, for simulations.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.ports import Noise

GRID: Final = 1 << 20  # steps in a unit: far finer than any calibrated sigma
Values = NDArray[np.float64]


def snapped(values: Values) -> Values:
    """The values rounded to the grid."""
    rounded: Values = np.rint(values * GRID) / GRID
    return rounded


@final
@dataclass(slots=True)
class SeededNoise(Noise):
    """The same values for the same seed: whoever knows the seed knows the noise. Simulations only."""

    seed: int
    _rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def gaussian(self, sigma: float, count: int) -> Values:
        return snapped(self._rng.normal(0.0, sigma, count))

    def laplace(self, scale: float, count: int) -> Values:
        return snapped(self._rng.laplace(0.0, scale, count))

    def uniform(self, count: int) -> Values:
        return self._rng.random(count)


@final
@dataclass(slots=True)
class SystemNoise(Noise):
    """Exact discrete noise from the system's entropy; `source` is replaced in tests only."""

    source: random.Random = field(default_factory=random.SystemRandom)

    def gaussian(self, sigma: float, count: int) -> Values:
        steps = Fraction(max(1, round(sigma * GRID)))
        return np.array([discrete_gaussian(steps, self.source) / GRID for _ in range(count)], np.float64)

    def laplace(self, scale: float, count: int) -> Values:
        steps = max(1, round(scale * GRID))
        return np.array([discrete_laplace(steps, self.source) / GRID for _ in range(count)], np.float64)

    def uniform(self, count: int) -> Values:
        return np.array([self.source.getrandbits(53) / (1 << 53) for _ in range(count)], np.float64)


def bernoulli_exp(gamma: Fraction, source: random.Random) -> bool:
    """True with probability exp(-gamma), gamma >= 0, exactly (algorithm 1)."""
    while gamma > 1:
        if not _bernoulli_exp_small(Fraction(1), source):
            return False
        gamma -= 1
    return _bernoulli_exp_small(gamma, source)


def _bernoulli_exp_small(gamma: Fraction, source: random.Random) -> bool:
    k = 1
    while source.randrange(gamma.denominator * k) < gamma.numerator:
        k += 1
    return k % 2 == 1


def discrete_laplace(scale: int, source: random.Random) -> int:
    """A whole number with probability proportional to exp(-|x| / scale) (algorithm 2)."""
    while True:
        low = source.randrange(scale)
        if not bernoulli_exp(Fraction(low, scale), source):
            continue
        high = 0
        while bernoulli_exp(Fraction(1), source):
            high += 1
        size = low + scale * high
        negative = bool(source.getrandbits(1))
        if not (negative and size == 0):
            return -size if negative else size


def discrete_gaussian(sigma: Fraction, source: random.Random) -> int:
    """A whole number with probability proportional to exp(-x^2 / (2 sigma^2)) (algorithm 3)."""
    scale = math.floor(sigma) + 1
    while True:
        x = discrete_laplace(scale, source)
        if bernoulli_exp((abs(x) - sigma * sigma / scale) ** 2 / (2 * sigma * sigma), source):
            return x
