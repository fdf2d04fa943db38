"""Released while votes arrive: the sparse vector technique, one AboveThreshold per name (Lyu, Su and Li 2017).

Looking costs nothing; each name that a unit votes for costs epsilon / l0. The threshold has one noise for all checks of
a name and each check has its own: with the first alone, the moment of release would betray the vote that caused it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from kvshare_research.core.ports import Ballot, Charge, Disclosure, Noise

from .calibration import sparse_vector_threshold
from .votes import OnlineVotes, check_parameters


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DpSvt(Disclosure):
    """(`epsilon`, `delta`)-differentially private over a horizon of `checks` releases, `period_us` apart."""

    is_private: ClassVar[bool] = True

    epsilon: float
    delta: float
    l0: int
    checks: int
    unit: str
    period_us: int
    alone: bool = False  # whether users of one tenant may make a prefix shared by themselves

    def __post_init__(self) -> None:
        check_parameters(self.unit, self.epsilon, self.delta, self.l0, self.checks)

    @property
    def scale(self) -> float:
        """Of both noises, in units: counts only grow, so 2 l0 / epsilon each."""
        return 2 * self.l0 / self.epsilon

    def initial_state(self) -> Any:
        return OnlineVotes(self.l0)

    def observe(self, state: Any, ballot: Ballot) -> Any:
        state.cast(ballot)
        return state

    def charge(self, state: Any) -> Charge | None:
        """The whole horizon is paid for at its first check."""
        if state.checks % self.checks:
            return None
        return Charge(label="dp_svt horizon", epsilon=self.epsilon, delta=self.delta)

    def release(self, state: Any, noise: Noise) -> tuple[Any, frozenset[bytes]]:
        state.checks += 1
        names = state.candidates()
        absent = [n for n in names if n not in state.noise]
        drawn = noise.laplace(self.scale, len(absent))
        state.noise.update({n: float(x) for n, x in zip(absent, drawn, strict=True)})
        threshold = sparse_vector_threshold(self.epsilon / self.l0, self.delta / self.l0, self.checks)
        counts = np.array([state.counted(n, self.alone) for n in names]) + noise.laplace(self.scale, len(names))
        passed = counts >= threshold + np.array([state.noise[n] for n in names])
        new = frozenset(n for n, p in zip(names, passed, strict=True) if p)
        state.released |= new
        return (self.initial_state() if state.checks == self.checks else state), new
