"""Who voted for what in a period: distinct units per name, each unit bounded; what exceeds a bound is counted only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import Ballot

from .apart import apart
from .noise import GRID

NAMES_PER_VOTE = 64  # names remembered of one unit, per vote it has: memory is bounded whatever a unit sends


def check_parameters(unit: str, epsilon: float, delta: float, l0: int = 1, checks: int = 1) -> None:
    """Nothing, if a mechanism can be calibrated for these; else a ConfigError that names the value."""
    if unit not in ("tenant", "user"):
        raise ConfigError(f"`disclosure.unit` is `{unit}`, expected `tenant` or `user`")
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"`disclosure.epsilon` is `{epsilon}`, expected a number above 0")
    if not 0 < delta < 1:
        raise ConfigError(f"`disclosure.delta` is `{delta}`, expected above 0 and below 1")
    if l0 < 1 or checks < 1:
        raise ConfigError(f"`disclosure` has l0 {l0} and {checks} checks, expected at least 1 of each")


@dataclass(slots=True)
class Votes:
    """How often each unit asked for each name. The counts serve only a unit's own choice among its names."""

    names_max: int
    by_unit: dict[int, dict[bytes, int]] = field(default_factory=dict)
    tenants: dict[int, int] = field(default_factory=dict)  # of units; a unit without one is of a tenant of its own
    clipped: int = 0

    def cast(self, ballot: Ballot) -> None:
        """The unit has asked once more for each of the names, as far as its memory goes."""
        mine = self.by_unit.setdefault(ballot.unit_id, {})
        self.tenants[ballot.unit_id] = tenant_of(ballot)
        for name in ballot.names:
            if name in mine:
                mine[name] += 1
            elif len(mine) < self.names_max:
                mine[name] = 1
            else:
                self.clipped += 1

    def candidates(self) -> list[bytes]:
        """Names somebody voted for, in a fixed order."""
        return sorted({name for mine in self.by_unit.values() for name in mine})

    def chosen(self, l0: int) -> tuple[tuple[int, tuple[bytes, ...]], ...]:
        """Each unit's votes: the `l0` names it asked for most, ties by name. One unit's choice depends on it alone."""
        return tuple(
            (unit, tuple(sorted(mine, key=lambda n: (-mine[n], n))[:l0])) for unit, mine in self.by_unit.items()
        )


@dataclass(slots=True)
class OnlineVotes:
    """First-come votes, for looking while votes arrive: the first `l0` names of a unit count, once each."""

    l0: int
    voters: dict[int, set[bytes]] = field(default_factory=dict)
    counts: dict[bytes, int] = field(default_factory=dict)
    by_tenant: dict[bytes, dict[int, int]] = field(default_factory=dict)
    released: set[bytes] = field(default_factory=set)
    checks: int = 0
    clipped: int = 0
    noise: dict[Any, float] = field(default_factory=dict)  # what was drawn once and is used again

    def cast(self, ballot: Ballot) -> None:
        """Each new name of the unit counts once, up to the bound."""
        mine = self.voters.setdefault(ballot.unit_id, set())
        for name in ballot.names:
            if name in mine:
                continue
            if len(mine) < self.l0:
                mine.add(name)
                self.counts[name] = self.counts.get(name, 0) + 1
                theirs, tenant = self.by_tenant.setdefault(name, {}), tenant_of(ballot)
                theirs[tenant] = theirs.get(tenant, 0) + 1
            else:
                self.clipped += 1

    def candidates(self) -> list[bytes]:
        """Names somebody voted for and that are not released yet, in a fixed order."""
        return sorted(self.counts.keys() - self.released)

    def counted(self, name: bytes, alone: bool) -> float:
        """Votes for the name: all of them, or unless `alone`, those that count where one tenant is not enough."""
        votes = self.counts[name]
        return votes if alone else apart(votes, max(self.by_tenant[name].values()))


def tenant_of(ballot: Ballot) -> int:
    """Of the unit that votes; a unit that is nobody's user is a tenant of its own."""
    return ballot.tenant_id or -ballot.unit_id


def tallied(
    votes: Iterable[tuple[int, tuple[bytes, ...]]], weighted: bool, tenants: Mapping[int, int] | None = None
) -> tuple[list[bytes], NDArray[np.float64]]:
    """The names voted for in a fixed order, and the sum of votes of each: 1 a vote, or 1/sqrt(votes of the unit). With
    the `tenants` of units, what counts of it where one tenant is not enough."""
    sums: dict[bytes, float] = {}
    theirs: dict[bytes, dict[int, float]] = {}
    for unit, names in votes:
        weight = math.floor(GRID / math.sqrt(len(names))) / GRID if weighted and names else 1.0  # never too long
        for name in names:
            sums[name] = sums.get(name, 0.0) + weight
            if tenants is not None:
                cast, tenant = theirs.setdefault(name, {}), tenants[unit]
                cast[tenant] = cast.get(tenant, 0.0) + weight
    if tenants is not None:
        sums = {name: apart(total, max(theirs[name].values())) for name, total in sums.items()}
    ordered = sorted(sums)
    return ordered, np.array([sums[name] for name in ordered], np.float64)
