"""The tables of the first prototypes, made again by the shipped code: thresholds, sharing, composition, KV noise."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np

from experiments.privacy_negative.__main__ import DIM, epsilon_of
from experiments.privacy_rate.__main__ import DELTA, L0, rates, world
from experiments.privacy_rate.online import CHECKS, VOTES, saved_online
from experiments.table import show
from kvshare_research.core.ports import Charge
from kvshare_research.disclosure.calibration import analytic_sigma, optimal_probabilities, weighted_threshold
from kvshare_research.disclosure.dp_batch import DpBatch
from kvshare_research.disclosure.dp_svt import DpSvt
from kvshare_research.disclosure.dp_tree import DpTree
from kvshare_research.privacy.ledger import Budget, composed


def units_needed(epsilon: float, l0: int) -> int:
    """Units that must vote for a name before `dp_batch` releases it half of the time, if each casts `l0` votes."""
    sigma = analytic_sigma(epsilon, 1e-6 / 2, 1.0)
    return math.ceil(weighted_threshold(1e-6 / 2, l0, sigma) * math.sqrt(l0))


def rate(units: int, epsilon: float, l0: int = L0) -> float:
    """Of the cold starts that sharing everything saves, the share that a release saves, in the mean of populations."""
    return float(rates(DpBatch(l0=l0, epsilon=epsilon, delta=DELTA, unit="user", period_us=1), units).mean())


def rate_online(kind: type[DpTree] | type[DpSvt], epsilon: float) -> float:
    """The same for 5,000 units where a release serves only who comes after it."""
    policy = kind(epsilon=epsilon, delta=DELTA, l0=VOTES, checks=CHECKS, unit="user", period_us=1, alone=True)
    return float(np.mean([saved_online(policy, world(5_000, seed), seed) for seed in range(3)]))


def run() -> dict[str, float]:
    """Every quantity."""
    warnings.filterwarnings("ignore")
    out: dict[str, float] = {}
    for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0):
        units = int(np.argmax(optimal_probabilities(epsilon, 1e-6) >= 0.5))
        out[f"units for half, one vote, epsilon {epsilon:g}"] = units
    out["units for half, 8 votes, epsilon 2"] = units_needed(2.0, 8)
    out["units for half, 32 votes, epsilon 2"] = units_needed(2.0, 32)
    for epsilon in (0.5, 2.0, 8.0):
        out[f"sharing rate, 500 units, epsilon {epsilon:g}"] = rate(500, epsilon)
    out["sharing rate, 5,000 units, epsilon 2"] = rate(5_000, 2.0)
    out["sharing rate of four votes, 5,000 units, epsilon 2"] = rate(5_000, 2.0, VOTES)
    out["online by tree, 5,000 units, epsilon 2"] = rate_online(DpTree, 2.0)
    out["online by sparse vector, 5,000 units, epsilon 2"] = rate_online(DpSvt, 2.0)
    budget = Budget(epsilon=1e6, delta=1e-6, unit="user", population=50_000)
    for daily in (0.5, 1.0, 2.0):
        charge = Charge(label="a day", noise_multiplier=analytic_sigma(daily, budget.delta, 1.0))
        out[f"30 days of epsilon {daily:g}"] = composed([charge] * 30, budget).epsilon
    for ratio in (0.1, 1.0, 10.0):
        out[f"epsilon of a head's vector, noise {ratio:g}"] = epsilon_of(ratio / (2 * math.sqrt(DIM)))
    return out


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
