"""Released while votes arrive: a binary tree of noisy partial sums per name (Dwork et al. 2010, Chan et al. 2011).

Over one horizon of `checks` releases a vote enters at most log2(checks) + 1 nodes of its name's tree, so all votes of
a unit have length sqrt(l0 * levels); the count at check t is a sum of as many nodes as t has binary ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import Ballot, Charge, Disclosure, Noise

from .calibration import analytic_sigma, tree_levels
from .votes import OnlineVotes, check_parameters


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DpTree(Disclosure):
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
        if self.unit == "user" and not self.alone:
            raise ConfigError(
                "`disclosure.unit` is `user` of a `DpTree`, whose sums cannot tell tenants apart; use `dp_svt`, or let"
                " users of one tenant share its prefixes with `disclosure.alone=true`"
            )

    @property
    def sensitivity(self) -> float:
        """Length of what one unit adds to all nodes."""
        return math.sqrt(self.l0 * tree_levels(self.checks))

    @property
    def sigma(self) -> float:
        """Noise of one node, in units."""
        return analytic_sigma(self.epsilon, self.delta / 2, self.sensitivity)

    def threshold(self, check: int) -> float:
        """Passed at check `check` by a name of one unit with probability at most delta / (2 l0 checks)."""
        from scipy.special import ndtri

        spread = self.sigma * math.sqrt(check.bit_count())
        return float(1 - spread * ndtri(self.delta / (2 * self.l0 * self.checks)))

    def initial_state(self) -> Any:
        return OnlineVotes(self.l0)

    def observe(self, state: Any, ballot: Ballot) -> Any:
        state.cast(ballot)
        return state

    def charge(self, state: Any) -> Charge | None:
        """The whole horizon is paid for at its first check."""
        if state.checks % self.checks:
            return None
        return Charge(label="dp_tree horizon", noise_multiplier=self.sigma / self.sensitivity, delta=self.delta / 2)

    def release(self, state: Any, noise: Noise) -> tuple[Any, frozenset[bytes]]:
        state.checks += 1
        names = state.candidates()
        total = np.array([state.counts[n] for n in names], np.float64) + self._noise(state, names, state.checks, noise)
        threshold = self.threshold(state.checks)
        new = frozenset(n for n, x in zip(names, total, strict=True) if x > threshold)
        state.released |= new
        return (self.initial_state() if state.checks == self.checks else state), new

    def _noise(self, state: OnlineVotes, names: list[bytes], check: int, noise: Noise) -> NDArray[np.float64]:
        """Noise of each name's sum over checks 1..check: one value per node of the dyadic cover, drawn once."""
        out = np.zeros(len(names))
        start = 0
        for level in reversed(range(check.bit_length())):
            if check >> level & 1:
                absent = [n for n in names if (n, level, start) not in state.noise]
                drawn = noise.gaussian(self.sigma, len(absent))
                state.noise.update({(n, level, start): float(x) for n, x in zip(absent, drawn, strict=True)})
                out += np.array([state.noise[n, level, start] for n in names])
                start += 1 << level
        return out
