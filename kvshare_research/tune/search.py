"""Where the next weights are looked for: CMA-ES (the package `cma`), and GORGO's (1+1)-ES for comparison.

Both search the logarithm of the weights, scaled to the unit box, and know nothing of fleets: they are given losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.selector.one_plus_one import Accepts, Climb

from .scores import Tunable

Floats = NDArray[np.float64]
Losses = Callable[[Floats], Floats]  # of each row of weights; smaller is better


@final
@dataclass(slots=True, kw_only=True)
class Found:
    """All that was evaluated, in order: rows of weights and their losses."""

    weights: list[Floats] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def add(self, weights: Floats, losses: Floats) -> None:
        """Rows that were evaluated together."""
        self.weights.extend(weights)
        self.losses.extend(losses.tolist())

    def best(self, count: int = 1) -> Floats:
        """The different rows of least loss, best first, at most `count`."""
        order = np.argsort(self.losses, kind="stable")
        kept: list[Floats] = []
        for i in order:
            if all(not np.allclose(self.weights[i], row, rtol=1e-3) for row in kept):
                kept.append(self.weights[i])
            if len(kept) == count:
                break
        return np.array(kept)


def cma_es(tunable: Tunable, losses: Losses, *, evaluations: int, population: int, seed: int) -> Found:
    """CMA-ES from the published weights, which are the first evaluated; `evaluations` in all. Equal for equal seeds."""
    import cma

    low, span = _box(tunable)
    start = (np.log(tunable.published) - low) / span
    chance = np.random.default_rng(seed)  # its own: the package's default is NumPy's global one, which others disturb
    options = {
        "seed": np.nan, "randn": lambda *size: chance.standard_normal(size), "popsize": population, "bounds": [0, 1],
        "verbose": -9, "tolfun": 0, "tolx": 0, "tolfunhist": 0, "tolflatfitness": np.inf, "tolstagnation": np.inf,
    }  # fmt: skip
    if len(start) == 1:  # the package asks for two dimensions; the second is read by nobody
        start, unused = np.append(start, 0.5), 1
    else:
        unused = 0
    strategy = cma.CMAEvolutionStrategy(start, 0.25, options)
    found = Found()
    while len(found.losses) < evaluations:
        asked = np.array(strategy.ask(population))
        if not found.losses:
            asked[0] = start
        weights = np.exp(low + span * asked[:, : len(asked[0]) - unused])
        values = losses(weights)
        found.add(weights, values)
        strategy.tell(list(asked), np.where(np.isfinite(values), values, 1e9).tolist())
    return found


def one_plus_one_es(
    tunable: Tunable, losses: Losses, accepts: Accepts, *, evaluations: int, seeds: tuple[int, ...]
) -> list[Found]:
    """GORGO v3's (1+1)-ES (`selector/one_plus_one.py`), a chain per seed, evaluated side by side; the last row of each
    is what it ended on. Scores are negative losses, as theirs."""
    low, high = np.log(tunable.low), np.log(tunable.high)
    chances = [np.random.default_rng(seed) for seed in seeds]
    start = np.tile(np.log(tunable.published), (len(seeds), 1))
    first = losses(np.exp(start))
    climbs = [Climb(at=tuple(row), best=-loss) for row, loss in zip(start.tolist(), first.tolist(), strict=True)]
    found = [Found() for _ in seeds]
    for i, row in enumerate(found):
        row.add(np.exp(start[i : i + 1]), first[i : i + 1])
    for _ in range(evaluations - 1):
        noise = np.array([chance.standard_normal(start.shape[1]) for chance in chances])
        tried = np.array([climb.tried(n, low, high) for climb, n in zip(climbs, noise, strict=True)])
        values = losses(np.exp(tried))
        for i, value in enumerate(values.tolist()):
            found[i].add(np.exp(tried[i : i + 1]), values[i : i + 1])
            climbs[i] = climbs[i].settled(tried[i], -value, accepts)
    for row, climb in zip(found, climbs, strict=True):
        row.add(np.exp(np.array([climb.at])), np.array([-climb.best]))
    return found


def _box(tunable: Tunable) -> tuple[Floats, Floats]:
    low, high = np.log(tunable.low), np.log(tunable.high)
    return low, high - low
