"""Nothing a tenant wrote is ever shared beyond its scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from kvshare_research.core.ports import Ballot, Charge, Disclosure, Noise


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NeverDisclosure(Disclosure):
    """Releases nothing, ever; spends no budget."""

    is_private: ClassVar[bool] = True

    unit: str = "tenant"
    period_us: int = 0

    def initial_state(self) -> Any:
        return None

    def observe(self, state: Any, ballot: Ballot) -> Any:
        return state

    def charge(self, state: Any) -> Charge | None:
        return None

    def release(self, state: Any, noise: Noise) -> tuple[Any, frozenset[bytes]]:
        return state, frozenset()
