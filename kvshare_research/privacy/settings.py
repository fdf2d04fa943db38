"""What a configuration says about the budget, and the desk made of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import Disclosure, Noise
from kvshare_research.disclosure.never import NeverDisclosure

from .desk import Desk
from .ledger import Budget, Ledger


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Bounds on what disclosure spends in all; the units protected are counted in the directory."""

    epsilon: float
    delta: float
    ledger_file: str | None
    keep_releases: int | None

    def __post_init__(self) -> None:
        if self.keep_releases is not None and self.keep_releases < 1:
            raise ConfigError(f"`budget.keep_releases` is `{self.keep_releases}`, expected 1 or more, or null")

    def desk(self, policy: Disclosure, directory: Directory, noise: Noise, now_us: int = 0) -> Desk:
        """The desk of this policy, with the ledger as the file left it; `never` needs none and opens none."""
        if isinstance(policy, NeverDisclosure):
            return Desk(policy, noise, None, now_us=now_us)
        population = len(directory.tenants if policy.unit == "tenant" else directory.users)
        budget = Budget(epsilon=self.epsilon, delta=self.delta, unit=policy.unit, population=max(1, population))
        own = getattr(policy, "delta", 0.0)
        if own >= 1 / budget.population:
            raise ConfigError(
                f"`disclosure.delta` is `{own}`, expected below 1/{budget.population}: one {policy.unit} in"
                f" {budget.population} may not be given away whole"
            )
        path = None if self.ledger_file is None else Path(self.ledger_file)
        return Desk(policy, noise, Ledger(budget, path), keep_releases=self.keep_releases, now_us=now_us)
