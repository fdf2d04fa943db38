"""How good a guess was: area under the ROC curve within each secret, and how often the best guess is right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What a signal gives away. `auc` is the chance that the right candidate scores above a wrong one, ties half: 0.5
    is nothing. Its interval is a 95 % bootstrap over secrets."""

    auc: float
    low: float
    high: float
    success_at_1: float  # share of secrets whose best-scoring candidate is right; ties count their chance
    success_at_3: float
    secrets: int
    probes_per_secret: int


def power(scores: Floats, seed: int) -> Power:
    """`scores[secret, candidate]`, larger meaning "more likely"; column 0 is the right candidate."""
    secrets, candidates = scores.shape
    right, wrong = scores[:, :1], scores[:, 1:]
    above = (wrong > right).sum(axis=1)
    ties = (wrong == right).sum(axis=1)
    each = 1 - (above + ties / 2) / (candidates - 1)
    draws = np.random.default_rng(seed).integers(0, secrets, (RESAMPLES, secrets))
    low, high = np.quantile(each[draws].mean(axis=1), [0.025, 0.975])
    return Power(
        auc=float(each.mean()),
        low=float(low),
        high=float(high),
        success_at_1=float(_found(above, ties, 1).mean()),
        success_at_3=float(_found(above, ties, 3).mean()),
        secrets=secrets,
        probes_per_secret=candidates,
    )


def _found(above: NDArray[np.int64], ties: NDArray[np.int64], tries: int) -> Floats:
    """The chance that the right candidate is among the `tries` best, equal scores in random order."""
    chance: Floats = np.clip((tries - above) / (ties + 1), 0, 1)
    return chance
