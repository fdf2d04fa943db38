"""Which request of one case is the same request of another: pairs by (seed, index in the workload)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

from kvshare_research.core.nouns import Outcome

from .records import BASELINE, CaseKey, CaseResult


class RequestKey(NamedTuple):
    """One request of a workload, whatever served it."""

    seed: int
    position: int  # in the workload


Pair = tuple[RequestKey, Outcome, Outcome]  # ours, baseline


@final
@dataclass(frozen=True, kw_only=True)
class Group:
    """The cases of one row: same key, different seeds."""

    key: CaseKey
    cases: tuple[CaseResult, ...]

    @property
    def incomplete(self) -> bool:
        return any(c.incomplete for c in self.cases)

    @cached_property
    def done(self) -> tuple[tuple[RequestKey, Outcome], ...]:
        """Finished requests of all seeds with their keys, in workload order."""
        rows = [(RequestKey(c.seed, c.index_of(o)), o) for c in self.cases for o in c.done()]
        return tuple(sorted(rows, key=lambda row: row[0]))


def group_cases(cases: Iterable[CaseResult]) -> tuple[Group, ...]:
    """Cases by key, in order of first appearance; ValueError for equal key and seed, which would count twice."""
    by_key: dict[CaseKey, list[CaseResult]] = {}
    for case in cases:
        row = by_key.setdefault(case.key, [])
        if any(other.seed == case.seed for other in row):
            raise ValueError(f"two results for {case.key} with seed {case.seed}")
        row.append(case)
    return tuple(Group(key=key, cases=tuple(row)) for key, row in by_key.items())


# What a baseline may differ in, beside the selector, from best to least fitting: recomputing moves no KV, so neither
# the link nor the tenancy changes what it computes. The report names what differs.
_RELAXED: tuple[tuple[str, ...], ...] = ((), ("link",), ("tenancy",), ("tenancy", "link"), ("label", "tenancy", "link"))


def find_baseline(key: CaseKey, groups: Sequence[Group], *, any_extra: bool = False) -> tuple[Group, str] | None:
    """The recompute_always group to compare with, and in words what else differs ("" if nothing); None if not run.

    `any_extra`: further labels need not agree; right where requests are not paired, as for a TTFT objective.
    """
    for relaxed in _RELAXED:
        for group in groups:
            other = group.key
            loose = (*relaxed, "extra") if any_extra else relaxed
            wanted = key._replace(selector=BASELINE, **{name: getattr(other, name) for name in loose})
            if other == wanted:
                return group, ", ".join(f"{name} {getattr(other, name)}" for name in relaxed)
    return None


def pair(ours: Group, baseline: Group) -> tuple[Pair, ...]:
    """Every request that both finished."""
    other = dict(baseline.done)
    return tuple((key, outcome, other[key]) for key, outcome in ours.done if key in other)
