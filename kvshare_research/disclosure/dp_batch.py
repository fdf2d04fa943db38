"""One differentially private release a period, used from the next period on: DPSU-Gaussian (Gopi et al. 2020).

A unit with t <= l0 names gives each a vote of 1/sqrt(t), so all its votes have length 1; Gaussian noise is added to
every sum and what passes the threshold is released. Half of delta is for the noise, half for names of a single unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.ports import Ballot, Charge, Disclosure, Noise

from .calibration import analytic_sigma, weighted_threshold
from .votes import NAMES_PER_VOTE, Votes, check_parameters, tallied


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DpBatch(Disclosure):
    """(`epsilon`, `delta`)-differentially private at each release, for the unit over one period."""

    is_private: ClassVar[bool] = True

    epsilon: float
    delta: float
    l0: int
    unit: str
    period_us: int
    alone: bool = False  # whether users of one tenant may make a prefix shared by themselves

    def __post_init__(self) -> None:
        check_parameters(self.unit, self.epsilon, self.delta, self.l0)

    @property
    def sigma(self) -> float:
        """Noise on a sum of votes, in votes."""
        return analytic_sigma(self.epsilon, self.delta / 2, 1.0)

    def initial_state(self) -> Any:
        return Votes(NAMES_PER_VOTE * self.l0)

    def observe(self, state: Any, ballot: Ballot) -> Any:
        state.cast(ballot)
        return state

    def charge(self, state: Any) -> Charge | None:
        return Charge(label="dp_batch release", noise_multiplier=self.sigma, delta=self.delta / 2)

    def kept(self, sums: NDArray[np.float64], noise: Noise) -> NDArray[np.bool_]:
        """Which sums of votes pass: the mechanism itself, as audited."""
        passed: NDArray[np.bool_] = sums + noise.gaussian(self.sigma, sums.size).reshape(
            sums.shape
        ) > weighted_threshold(self.delta / 2, self.l0, self.sigma)
        return passed

    def release(self, state: Any, noise: Noise) -> tuple[Any, frozenset[bytes]]:
        names, sums = tallied(state.chosen(self.l0), True, None if self.alone else state.tenants)
        kept = self.kept(sums, noise)
        return self.initial_state(), frozenset(n for n, k in zip(names, kept, strict=True) if k)
