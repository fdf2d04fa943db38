"""The overlap table of the note this project started from, as a hypothesis: which of its cells hold here.

The note claims, per share of overlapping prefix, how much prefill latency falls and throughput rises. Neither
paper it names contains the table. Idle saving can never exceed the overlap; loaded saving can, since shorter
service also shortens the queue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from . import statistics
from .pairing import Group, find_baseline, group_cases
from .records import CaseKey, CaseResult
from .statistics import Estimate, RatePoint, SloThroughput
from .summary import Row, row_of

DEFAULT_OBJECTIVE = 5.0  # x the idle recompute_always median TTFT, where no objective is given
OURS = "cheapest"


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the note. Latency as share saved, throughput as factor."""

    overlap: float
    and_more: bool
    latency: tuple[float, float]
    throughput: tuple[float, float]

    @property
    def name(self) -> str:
        return f"{self.overlap:.0%} and more" if self.and_more else f"{self.overlap:.0%}"


CLAIMS = (
    Claim(0.30, False, (0.40, 0.60), (1.5, 2.0)),
    Claim(0.50, False, (0.50, 0.70), (2.0, 3.0)),
    Claim(0.80, True, (0.70, 0.90), (3.0, 5.0)),
)


class Verdict(StrEnum):
    """What a cell of the note is worth here."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided (interval crosses)"
    NOT_RUN = "not run"


def judge(claim: tuple[float, float], ours: Estimate | None) -> Verdict:
    """Holds: the whole interval is inside the claimed range. Does not hold: it is wholly outside. Else undecided."""
    if ours is None or not ours.known:
        return Verdict.NOT_RUN
    low, high = claim
    if not ours.has_interval:
        return Verdict.UNDECIDED
    if ours.high < low or ours.low > high:
        return Verdict.FAILS
    if low <= ours.low and ours.high <= high:
        return Verdict.HOLDS
    return Verdict.UNDECIDED


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One claim against one measurement. `setting` says label, link, tenancy; `side` where ours lies if it fails."""

    claim: Claim
    overlap: float  # as run; at least the claim's
    quantity: str  # "prefill, idle", "TTFT, ρ 0.70" (utilisation), "throughput at SLO"
    claimed: tuple[float, float]
    ours: Estimate | None
    verdict: Verdict
    setting: str
    note: str = ""

    @property
    def side(self) -> str:
        if self.verdict is not Verdict.FAILS or self.ours is None:
            return ""
        return "below" if self.ours.high < self.claimed[0] else "above"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SloRow:
    """Throughput of one selector at a stated TTFT objective."""

    key: CaseKey  # utilisation is None: it spans all of them
    objective_us: float
    objective_note: str
    throughput: SloThroughput
    rates_per_s: tuple[float, ...]
    goodput_per_s: float  # requests per second within the objective, at the highest rate run


def _claim_for(overlap: float) -> Claim | None:
    for claim in CLAIMS:
        if math.isclose(overlap, claim.overlap, abs_tol=0.005) or (claim.and_more and overlap > claim.overlap):
            return claim
    return None


def _setting(key: CaseKey) -> str:
    return f"{key.label}, link {key.link}, tenancy {key.tenancy}, {key.selector}"


def _rate_point(group: Group) -> RatePoint:
    rows = [(c.seed, o) for c in group.cases for o in c.measured()]
    finished = {id(o) for c in group.cases for o in c.done()}
    return RatePoint(
        rate_per_s=next(c.rate_per_s for c in group.cases if c.rate_per_s is not None),
        ttft_us=tuple(float(o.ttft_us) if id(o) in finished else math.inf for _, o in rows),
        groups=tuple(seed for seed, _ in rows),
    )


def _goodput(top: tuple[RatePoint, Group], objective_us: float) -> float:
    """Seeds one after the other, each from its first arrival to its last end."""
    duration_us = 0
    for case in top[1].cases:
        rows = case.measured()
        if rows:
            duration_us += max(o.arrival_us + o.end_to_end_us for o in rows) - min(o.arrival_us for o in rows)
    return statistics.goodput_per_s(top[0].ttft_us, objective_us, duration_us)


def _objective(key: CaseKey, groups: Sequence[Group]) -> tuple[float, str] | None:
    idle = find_baseline(key, groups, any_extra=True)
    times = [o.ttft_us for _, o in idle[0].done] if idle else []
    if not times:
        return None
    return (
        DEFAULT_OBJECTIVE * statistics.median(times).value,
        f"{DEFAULT_OBJECTIVE:g} x the idle recompute_always median",
    )


def _slo_row(key: CaseKey, members: Sequence[Group], objective_us: float, note: str) -> SloRow:
    ordered = sorted(((_rate_point(g), g) for g in members), key=lambda pair: pair[0].rate_per_s)
    points = [point for point, _ in ordered]
    enough = min(len(p.ttft_us) for p in points) >= statistics.P95_SAMPLES
    return SloRow(
        key=key,
        objective_us=objective_us,
        objective_note=note,
        throughput=statistics.throughput_at_slo(points, objective_us, 0.95 if enough else 0.5),
        rates_per_s=tuple(p.rate_per_s for p in points),
        goodput_per_s=_goodput(ordered[-1], objective_us),
    )


def slo_rows(cases: Iterable[CaseResult], objective_us: float | None = None) -> tuple[SloRow, ...]:
    """Throughput per setting that was run at two rates or more, without partial cases.

    Without an objective it is `DEFAULT_OBJECTIVE` times the idle recompute_always median of the same overlap;
    settings for which that was not run are left out. The p95 is held to it with 100 samples a rate, else the median.
    """
    groups = [g for g in group_cases(cases) if not g.incomplete]
    by_setting: dict[CaseKey, list[Group]] = {}
    for group in groups:
        if group.key.utilisation is not None and any(c.rate_per_s is not None for c in group.cases):
            by_setting.setdefault(group.key._replace(utilisation=None), []).append(group)
    rows = []
    for key, members in by_setting.items():
        objective = (objective_us, "given") if objective_us is not None else _objective(key, groups)
        if objective is not None and len(members) >= 2:
            rows.append(_slo_row(key, members, *objective))
    return tuple(rows)


def _throughput_cells(cases: Sequence[CaseResult], selector: str, objective_us: float | None) -> list[Cell]:
    rows = slo_rows(cases, objective_us)
    cells = []
    for row in rows:
        claim = _claim_for(row.key.overlap) if row.key.overlap is not None else None
        baseline = _slo_baseline(row, rows)
        if row.key.selector != selector or claim is None or row.key.overlap is None or baseline is None:
            continue
        ratio = statistics.throughput_ratio(row.throughput, baseline.throughput)
        note = f"TTFT p{100 * row.throughput.quantile:.0f} <= {row.objective_us / 1000:.0f} ms ({row.objective_note})"
        if row.throughput.at_least:
            note += "; met at every rate run, so a lower limit"
        if not baseline.throughput.bracketed:
            note += "; the rates run do not bracket recompute_always"
        cells.append(
            Cell(
                claim=claim,
                overlap=row.key.overlap,
                quantity="throughput at SLO",
                claimed=claim.throughput,
                ours=ratio if ratio.known else None,
                verdict=judge(claim.throughput, ratio),
                setting=_setting(row.key),
                note=note,
            )
        )
    return cells


def _slo_baseline(row: SloRow, rows: Sequence[SloRow]) -> SloRow | None:
    groups = {r.key: Group(key=r.key, cases=()) for r in rows}
    found = find_baseline(row.key, tuple(groups.values()))
    return next((r for r in rows if found and r.key == found[0].key), None)


def _latency_cell(row: Row, claim: Claim, overlap: float) -> Cell:
    idle = row.key.utilisation is None
    ours = (row.savings.prefill_share if idle else row.savings.ttft_share) if row.savings else None
    notes = []
    if row.savings is None or not row.savings.pairs:
        notes.append("no recompute_always case to compare with")
    elif row.savings.baseline_note:
        notes.append(f"baseline: {row.savings.baseline_note}")
    if idle and row.savings and row.savings.breaks_bound:
        notes.append("above the bound: look at the measurement")
    if row.steadiness and row.steadiness.trouble:
        notes.append(f"{row.steadiness.trouble}: depends on the run's length")
    return Cell(
        claim=claim,
        overlap=overlap,
        quantity="prefill, idle" if idle else f"TTFT, ρ {row.key.utilisation:.2f}",
        claimed=claim.latency,
        ours=ours,
        verdict=judge(claim.latency, ours),
        setting=_setting(row.key),
        note="; ".join(notes),
    )


def overlap_table(
    cases: Sequence[CaseResult], *, selector: str = OURS, objective_us: float | None = None
) -> tuple[Cell, ...]:
    """Every cell of the note that complete cases speak to, and a `not run` cell for each they do not."""
    complete = [c for c in cases if not c.incomplete]
    cells = []
    groups = group_cases(complete)
    for group in groups:
        overlap = group.key.overlap
        claim = _claim_for(overlap) if overlap is not None else None
        if group.key.selector == selector and claim is not None and overlap is not None:
            cells.append(_latency_cell(row_of(group, groups), claim, overlap))
    cells += _throughput_cells(complete, selector, objective_us)
    for claim in CLAIMS:
        for quantity, claimed in (
            ("prefill, idle", claim.latency),
            ("TTFT", claim.latency),
            ("throughput at SLO", claim.throughput),
        ):
            if not any(c.claim is claim and c.quantity.startswith(quantity) for c in cells):
                cells.append(
                    Cell(
                        claim=claim,
                        overlap=claim.overlap,
                        quantity=quantity + (", loaded" if quantity == "TTFT" else ""),
                        claimed=claimed,
                        ours=None,
                        verdict=Verdict.NOT_RUN,
                        setting="",
                    )
                )
    return tuple(sorted(cells, key=lambda c: (not c.setting, c.setting, c.overlap, c.quantity)))


def bound_violations(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Idle rows whose saving lies above the analytic bound with 95 % confidence: empty, or the measurement is wrong."""
    return tuple(r for r in rows if r.idle and r.savings is not None and r.savings.breaks_bound)
