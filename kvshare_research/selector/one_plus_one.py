"""GORGO v3's (1+1)-ES as pure steps: what is tried next, and what stands once it was scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Accepts = Callable[[float, float], bool]  # (score, best so far); larger is better

TOLERANCE = 0.005  # of the accept rule
SIGMA_START, SIGMA_MIN, DECAY, SUCCESS_WINDOW, SUCCESS_TARGET = 0.5, 0.05, 0.817, 8, 0.2


def accepts_published(score: float, best: float) -> bool:
    """GORGO v3's rule for scores of which larger is better: score > best * (1 + tolerance)."""
    return score > best * (1 + TOLERANCE)


def accepts_repaired(score: float, best: float) -> bool:
    """Better by more than the tolerance of its size, whatever the sign."""
    return score > best + TOLERANCE * abs(best)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """Where the search stands: logarithms of the weights, their score, the step width, and the last tries' success."""

    at: tuple[float, ...]
    best: float
    sigma: float = SIGMA_START
    wins: tuple[bool, ...] = ()

    def tried(self, noise: Floats, low: Floats, high: Floats) -> Floats:
        """x' = clip(exp(ln x + sigma N(0, I))), in logarithms; `noise` is standard normal, the box logarithmic."""
        return np.clip(np.array(self.at) + self.sigma * noise, low, high)

    def settled(self, tried: Floats, score: float, accepts: Accepts) -> Climb:
        """After one try. Sigma is multiplied by .817 while fewer than a fifth of the last eight tries succeeded, else
        divided (arXiv 2602.11688; its repository's hill climber)."""
        won = accepts(score, self.best)
        wins = (*self.wins, won)[-SUCCESS_WINDOW:]
        sigma = self.sigma
        if len(wins) == SUCCESS_WINDOW:
            sigma = max(SIGMA_MIN, sigma * DECAY if np.mean(wins) < SUCCESS_TARGET else sigma / DECAY)
        moved = replace(self, sigma=sigma, wins=wins)
        return replace(moved, at=tuple(tried.tolist()), best=score) if won else moved
