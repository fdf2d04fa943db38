"""One vote a unit, released with the largest probability that privacy allows (Desfontaines et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.ports import Ballot, Charge, Disclosure, Noise

from .calibration import optimal_probabilities
from .votes import NAMES_PER_VOTE, Votes, check_parameters, tallied


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DpOptimal(Disclosure):
    """(`epsilon`, `delta`)-differentially private at each release; a unit votes for the name it asked for most."""

    is_private: ClassVar[bool] = True

    epsilon: float
    delta: float
    unit: str
    period_us: int
    alone: bool = False  # whether users of one tenant may make a prefix shared by themselves

    def __post_init__(self) -> None:
        check_parameters(self.unit, self.epsilon, self.delta)

    def initial_state(self) -> Any:
        return Votes(NAMES_PER_VOTE)

    def observe(self, state: Any, ballot: Ballot) -> Any:
        state.cast(ballot)
        return state

    def charge(self, state: Any) -> Charge | None:
        return Charge(label="dp_optimal release", epsilon=self.epsilon, delta=self.delta)

    def kept(self, sums: NDArray[np.float64], noise: Noise) -> NDArray[np.bool_]:
        """Which numbers of units pass: the mechanism itself, as audited."""
        table = optimal_probabilities(self.epsilon, self.delta)
        probability = table[np.minimum(sums.astype(np.int64), len(table) - 1)]
        passed: NDArray[np.bool_] = noise.uniform(sums.size).reshape(sums.shape) < probability
        return passed

    def release(self, state: Any, noise: Noise) -> tuple[Any, frozenset[bytes]]:
        names, sums = tallied(state.chosen(1), False, None if self.alone else state.tenants)
        kept = self.kept(sums, noise)
        return self.initial_state(), frozenset(n for n, k in zip(names, kept, strict=True) if k)
