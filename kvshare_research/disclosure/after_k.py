"""Shared once `k` distinct units have asked for it. No noise, hence no differential privacy: a baseline.

Whoever controls k - 1 units learns for certain whether one more asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import Ballot, Charge, Disclosure, Noise

from .votes import NAMES_PER_VOTE, OnlineVotes, check_parameters


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AfterK(Disclosure):
    """Releases a name at once when its `k`-th unit asks for it. Its epsilon is infinite, and said to be."""

    is_private: ClassVar[bool] = False

    k: int
    unit: str
    period_us: int = 0
    alone: bool = False  # whether users of one tenant may make a prefix shared by themselves

    def __post_init__(self) -> None:
        check_parameters(self.unit, math.e, 0.5)
        if self.k < 2:
            raise ConfigError(f"`disclosure.k` is `{self.k}`, expected 2 or more")

    def initial_state(self) -> Any:
        return OnlineVotes(NAMES_PER_VOTE * NAMES_PER_VOTE)

    def observe(self, state: Any, ballot: Ballot) -> Any:
        state.cast(ballot)
        return state

    def charge(self, state: Any) -> Charge | None:
        return None

    def release(self, state: Any, noise: Noise) -> tuple[Any, frozenset[bytes]]:
        new = frozenset(name for name in state.candidates() if state.counted(name, self.alone) >= self.k)
        state.released |= new
        return state, new
