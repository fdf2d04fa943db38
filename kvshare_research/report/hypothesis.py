"""The note's overlap table beside ours, and throughput at the objective, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from kvshare_research.metrics.records import Label
from kvshare_research.metrics.verdict import Cell, SloRow, Verdict

from .content import Table
from .text import factor, number, overlap_name, percent_estimate


def _claimed(cell: Cell) -> str:
    low, high = cell.claimed
    if cell.quantity.startswith("throughput"):
        return f"{low:g}–{high:g}x"
    return f"{100 * low:.0f}–{100 * high:.0f} % less"


def _ours(cell: Cell) -> str:
    return factor(cell.ours) if cell.quantity.startswith("throughput") else percent_estimate(cell.ours)


def verdict_tables(cells: Sequence[Cell], *, random_weights: bool = False) -> list[Table]:
    """One table per setting that was run, and one of the cells that were not; none if nothing was run.

    What a model of `random_weights` was measured at says nothing of the note: no verdict is passed on it.
    """
    tables = []
    cells = cells if any(c.setting for c in cells) else ()
    for where in dict.fromkeys(c.setting for c in cells):
        mine = [c for c in cells if c.setting == where]
        silent = random_weights and where.startswith((Label.MEASURED, Label.EMULATED))
        remarks = list(dict.fromkeys(f"{overlap_name(c.overlap)}, {c.quantity}: {c.note}." for c in mine if c.note))
        tables.append(
            Table(
                title=f"The note's table against ours ({where or 'not run'})",
                columns=("overlap", "quantity", "the note", "ours [95 %]", "n", "verdict"),
                names=2,
                rows=tuple(
                    (
                        overlap_name(c.overlap) + (" and more" if c.claim.and_more and not where else ""),
                        c.quantity,
                        _claimed(c),
                        _ours(c),
                        f"{c.ours.samples:,}" if c.ours else "0",
                        "no verdict" if silent else f"{c.verdict.value}, {c.side}" if c.side else c.verdict.value,
                    )
                    for c in mine
                ),
                notes=(
                    "The note is a hypothesis: no paper we know contains its table.",
                    f"{Verdict.HOLDS}: our whole interval lies in the note's range. {Verdict.FAILS}: it lies outside.",
                    *(("A model with random weights: no verdict.",) if silent else ()),
                    *remarks,
                ),
            )
        )
    return tables


def slo_table(rows: Sequence[SloRow]) -> list[Table]:
    """Highest arrival rate that meets the objective; nothing if no setting was run at two rates."""
    tables = []
    for label in dict.fromkeys(r.key.label for r in rows):
        mine = [r for r in rows if r.key.label == label]
        tables.append(
            Table(
                title=f"Throughput at a TTFT objective ({label})",
                columns=("overlap", "link", "tenancy", "selector", "objective", "requests/s [95 %]", "goodput"),
                names=4,
                rows=tuple(
                    (
                        overlap_name(r.key.overlap),
                        r.key.link,
                        r.key.tenancy,
                        r.key.selector,
                        f"p{100 * r.throughput.quantile:.0f} ≤ {number(r.objective_us / 1000)} ms",
                        _rate(r),
                        number(r.goodput_per_s),
                    )
                    for r in mine
                ),
                notes=(
                    "Highest arrival rate whose TTFT meets the objective, linear between the rates run. Rejected "
                    "requests miss it.",
                    "Goodput: requests/s that met it at the highest rate run.",
                    *dict.fromkeys(f"Objective: {r.objective_note}." for r in mine),
                    *dict.fromkeys(f"Rates run, requests/s: {', '.join(map(number, r.rates_per_s))}." for r in mine),
                ),
            )
        )
    return tables


def _rate(row: SloRow) -> str:
    found = row.throughput
    if not found.rate_per_s.known:
        return "–"
    if found.at_most:
        return f"below {number(row.rates_per_s[0])}"
    if found.at_least:
        return f"at least {number(row.rates_per_s[-1])}"
    e = found.rate_per_s
    return f"{number(e.value)} [{number(e.low)}, {number(e.high)}]"
