"""What the report says, as plain values: tables of text and notices. Rendering is elsewhere (rich, HTML)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from kvshare_research.core.nouns import Action, MissReason
from kvshare_research.metrics.fidelity import PARTS, Fidelity
from kvshare_research.metrics.pulls import Pull
from kvshare_research.metrics.records import BASELINE, RECORDED, Label
from kvshare_research.metrics.statistics import P95_SAMPLES, P99_SAMPLES
from kvshare_research.metrics.summary import Row

from .text import (
    NOTHING,
    TimeUnit,
    count,
    duration,
    in_order,
    key_fields,
    number,
    percent,
    percent_estimate,
    unit_for,
    varying,
)

MEGABYTE = 1e6


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of text. The first `names` columns say which case a row is; the others are numbers."""

    title: str
    columns: tuple[str, ...]
    names: int
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


Cells = Callable[[Row], tuple[str, ...]]


def _order(row: Row) -> tuple[object, ...]:
    key = row.key
    overlap = -1.0 if key.overlap is None else key.overlap
    load = -1.0 if key.utilisation is None else key.utilisation
    return key.workload, in_order(key.extra), key.link, key.tenancy, overlap, load, key.selector != BASELINE


def _table(title: str, rows: Sequence[Row], columns: tuple[str, ...], cells: Cells, *notes: str) -> Table:
    """One line per row, sorted by setting. Columns in which no row has a value are left out."""
    rows = sorted(rows, key=_order)
    found = [cells(r) for r in rows]
    kept = [i for i in range(len(columns)) if i == 0 or any(line[i] != NOTHING for line in found)]
    fields = [key_fields(r.key) | ({} if r.idle or r.key.utilisation else {"load": RECORDED}) for r in rows]
    names = varying([r.key for r in rows])
    constant = ", ".join(f"{k} {v}" for k, v in fields[0].items() if k not in names) if fields else ""
    return Table(
        title=title,
        columns=(*names, *(columns[i] for i in kept)),
        names=len(names),
        rows=tuple(
            (*(f.get(n, NOTHING) for n in names), *(line[i] for i in kept))
            for f, line in zip(fields, found, strict=True)
        ),
        notes=((f"In all rows: {constant}.",) if constant else ()) + notes,
    )


STEADINESS = (
    f"p95 needs {P95_SAMPLES} samples, p99 {P99_SAMPLES}. †: depends on the run's length. Saturated: the queue grew to "
    "the end (Kendall's tau, p < 0.05, and by two first tokens). Warm-up: requests left out / what MSER-5 finds (0: "
    "fewer than 100 requests, ?: no end); the state names it if leaving it out moves the mean. "
    "Fairness: Jain index of the tenants' mean TTFT, 1 = all wait alike."
)


def _latency(row: Row, unit: TimeUnit) -> tuple[str, ...]:
    steady = row.steadiness
    mark = "†" if steady and steady.trouble else ""
    p50 = duration(row.ttft.p50, unit)
    p95, p99 = (number(None if q is None else q / unit.us) for q in (row.ttft.p95, row.ttft.p99))
    marked = tuple(cell if cell == NOTHING else cell + mark for cell in (p50, p95, p99))
    state = NOTHING if steady is None else steady.trouble or "steady"
    left_out = NOTHING if steady is None else f"{steady.left_out} / {'?' if steady.warmup is None else steady.warmup}"
    return count(row.ttft.samples), *marked, state, left_out, number(row.fairness)


def _saved(row: Row, unit: TimeUnit) -> tuple[str, ...]:
    saved = row.savings
    if saved is None:
        return (NOTHING,) * 6
    return (
        count(saved.pairs),
        percent_estimate(saved.ttft_share),
        duration(saved.ttft_us, unit),
        percent_estimate(saved.prefill_share),
        percent(saved.bound) if row.idle else NOTHING,
        duration(saved.prefill_us, unit),
    )


def _held(row: Row) -> tuple[str, ...]:
    held_us = dict(row.components_us)["held"]
    share = held_us / sum(us for _, us in row.components_us)
    return count(row.done), count(row.shaped), count(row.late), number(held_us / 1000), percent(share)


def _tokens(row: Row) -> tuple[str, ...]:
    r = row.reuse
    parts = (r.prompt, r.computed, r.resident, r.routed, r.pulled, r.same_tenant, r.cross_tenant)
    return tuple(count(p) for p in parts)


def _bytes(row: Row) -> tuple[str, ...]:
    nodes = " / ".join(number(x) for x in row.storage.per_node) or NOTHING
    moved, planned = number(row.wire_bytes / MEGABYTE), number(row.planned_bytes / MEGABYTE)
    return moved, planned, nodes, number(row.storage.fleet)


def _identity(row: Row) -> tuple[str, ...]:
    same = row.identity
    if same is None or not same.compared:
        return NOTHING, NOTHING, NOTHING
    return f"{same.identical} of {same.compared}", number(same.largest_logit_difference), count(same.not_a_number)


def _prediction(row: Row) -> tuple[str, ...]:
    fit, unseen, decide = row.prediction.fit, row.prediction.unseen, row.decide
    tail = number(decide.p99 / 1000) if decide.p99 is not None else f"max {number(decide.maximum / 1000)}"
    return (
        f"{percent(fit.median)} ({fit.samples})" if fit.samples else NOTHING,
        f"{percent(unseen.median)} ({unseen.samples})" if unseen.samples else NOTHING,
        number(decide.p50.value / 1000),
        tail if decide.samples else NOTHING,
        percent(row.decide_share),
    )


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


def _ways(rows: Sequence[Row], title: str) -> Table:
    used = [a for a in Action if any(dict(r.actions).get(a) for r in rows)]
    never = ", ".join(_words(a.name) for a in Action if a not in used)

    def cells(row: Row) -> tuple[str, ...]:
        chosen = dict(row.actions)
        return (*(count(chosen.get(a, 0)) for a in used), count(row.rejected), count(row.failed))

    note = "Requests by what was done for their prefix." + (f" Never chosen: {never}." if never else "")
    return _table(title, rows, (*(_words(a.name) for a in used), "rejected", "failed"), cells, note)


def _reasons(rows: Sequence[Row], title: str) -> Table:
    seen = [r for r in MissReason if any(dict(row.reuse.missed).get(r) for row in rows)]

    def cells(row: Row) -> tuple[str, ...]:
        missed = dict(row.reuse.missed)
        return (*(count(missed.get(r, 0)) for r in seen), count(row.reuse.unexplained))

    return _table(
        title,
        rows,
        (*(_words(r.name) for r in seen), "no reason"),
        cells,
        "Prompt tokens that were computed, by the reason why they were not reused.",
    )


def _held_back(rows: Sequence[Row], title: str) -> Table:
    return _table(
        title,
        [r for r in rows if r.shaped],
        ("n", "shaped", "later than that", "held, mean of all, ms", "of TTFT"),
        _held,
        "Shaped: told no sooner than a time that does not depend on what others have run (`limits.shape`). What was "
        "later than that time was told when it was there, and shows it.",
    )


def case_tables(rows: Sequence[Row]) -> list[Table]:
    """The tables of the cases: one set per label and completeness, which are never mixed in one table."""
    tables: list[Table] = []
    kinds = dict.fromkeys((r.key.label, r.partial) for r in rows)
    for label, partial in kinds:
        mine = [r for r in rows if (r.key.label, r.partial) == (label, partial)]
        kind = f"{label}, PARTIAL: requests are missing" if partial else label
        tables += _tables_of(mine, kind)
    return tables


def _saved_table(rows: Sequence[Row], kind: str, unit: TimeUnit) -> Table:
    saved = (f"TTFT saved, {unit.name}", "prefill saved", "at most", f"prefill saved, {unit.name}")
    return _table(
        f"Saved against recompute_always ({kind})",
        rows,
        ("pairs", "TTFT saved", *saved),
        lambda row: _saved(row, unit),
        f"A pair is the same request in both runs. Shares compare medians; {unit.name} is the median of differences. "
        "Prefill: fetch + compute + merge, without queueing.",
        "At most: an idle run cannot save a larger share than it reuses. A loaded one can: its queue is shorter.",
    )


def _tables_of(rows: Sequence[Row], kind: str) -> list[Table]:
    seeds = sorted({s for r in rows for s in r.seeds})
    samples = f"Seeds: {', '.join(map(str, seeds))}. n: requests with a first token, warm-up left out."
    compared = [r for r in rows if r.savings is not None]
    came = "measured" if all(r.key.label in (Label.MEASURED, Label.EMULATED) for r in rows) else "simulated"
    unit = unit_for(q for r in rows for q in (r.ttft.p50.value, r.ttft.p95, r.ttft.p99))
    tables = [
        _table(
            f"Time to first token ({kind})",
            rows,
            ("n", *(f"{q}, {unit.name}" for q in ("TTFT p50 [95 %]", "p95", "p99")), "state", "warm-up", "fairness"),
            lambda row: _latency(row, unit),
            samples,
            STEADINESS,
        ),
        _held_back(rows, f"Answers held back ({kind})"),
        _saved_table(compared, kind, unit),
        _table(
            f"Where prompt tokens came from ({kind})",
            rows,
            ("prompt", "computed", "resident", "routed", "pulled", "same tenant", "cross tenant"),
            _tokens,
            "Tokens. Computed + resident + routed + pulled = prompt. Same tenant + cross tenant = all reused ones, by "
            "whom they were first computed for.",
        ),
        _reasons(rows, f"Why tokens were computed ({kind})"),
        _table(
            f"Bytes ({kind})",
            rows,
            ("moved, MB", "planned, MB", "stored per unique byte, by node", "fleet"),
            _bytes,
            "Moved: KV payload that crossed between ranks. Planned: blocks in the plans x block bytes. "
            "Stored per unique byte: 1 = no duplicate.",
        ),
        _table(
            f"Same answers as recompute ({kind})",
            compared,
            ("tokens identical to recompute", "largest logit difference", "not a number"),
            _identity,
            "Requests whose generated tokens all equal those of recompute_always. The logits are the top ones of the "
            "first token.",
        ),
        _table(
            f"Prediction and decision ({kind})",
            rows,
            ("error, fitted (n)", "error, unseen (n)", "decide p50, ms", "p99, ms", "of TTFT"),
            _prediction,
            f"Error: median of |predicted - {came}| / {came} TTFT; unseen: calibration never saw the request. "
            f"Decide: hash, look up, judge, quote, select; the maximum below {P99_SAMPLES} samples.",
        ),
        _ways(rows, f"Ways of serving ({kind})"),
    ]
    return [t for t in tables if t.rows]


def pull_tables(rows: Sequence[Pull]) -> list[Table]:
    """What a pull costs beside a local hit; nothing if no probe was run."""
    tables = []
    for label in dict.fromkeys(r.key.label for r in rows):
        mine = [r for r in rows if r.key.label == label]
        names = [n for n in varying([r.key for r in mine]) if n != "selector"] or ["overlap"]
        tables.append(
            Table(
                title=f"A pull against a local hit, idle ({label})",
                columns=(*names, "pairs", "local hit, ms", "remote hit, ms", "remote - local, ms", "pulled, MB"),
                names=len(names),
                rows=tuple(
                    (
                        *(key_fields(r.key)[n] for n in names),
                        count(r.pairs),
                        duration(r.local_ttft),
                        duration(r.remote_ttft),
                        duration(r.extra_ttft),
                        number(r.pulled_bytes / MEGABYTE),
                    )
                    for r in mine
                ),
                notes=(
                    "TTFT p50 of the same text: its prefix reused where it lies, or pulled to a node without it. "
                    "The difference is the median over pairs.",
                    *([] if "link" in names else dict.fromkeys(f"Link: {r.key.link}." for r in mine)),
                ),
            )
        )
    return tables


def calibration_table(known: Sequence[Mapping[str, Any]]) -> list[Table]:
    """What was measured before the cases, and how well it is known; nothing where nothing was."""

    def between(ends: Sequence[float | None]) -> str:
        return f"[{number(ends[0])}, {number(ends[1]) if ends[1] is not None else 'unknown'}]"

    rows = tuple(
        (str(r["name"]), f"{number(r['value'])} {r['unit']}", between(r["hessian"]), between(r["bootstrap"]))
        for r in known
    )
    note = (
        "Fitted by gradient to all measured points. By Hessian: if errors are as the fit assumes; by bootstrap: over "
        "the measured shapes. 0: not told from nothing."
    )
    columns = ("cost", "value", "95 % by Hessian", "95 % by bootstrap")
    return [Table(title="Calibration", columns=columns, names=1, rows=rows, notes=(note,))] if rows else []


def fidelity_tables(rows: Sequence[Fidelity]) -> list[Table]:
    """The simulator against the ranks, by quantile and by component; nothing where no case has a twin."""
    if not rows:
        return []
    names = varying([r.key for r in rows])

    def table(title: str, columns: tuple[str, ...], cells: Callable[[Fidelity], tuple[str, ...]], note: str) -> Table:
        lines = tuple((*(key_fields(r.key).get(n, NOTHING) for n in names), *cells(r)) for r in rows)
        return Table(title=title, columns=(*names, *columns), names=len(names), rows=lines, notes=(note,))

    def quantiles(row: Fidelity) -> tuple[str, ...]:
        ends = [cell for pair in (row.p50_us, row.p95_us) for cell in (*_both(pair), _off(pair))]
        return count(row.pairs), *ends, percent(row.request_error), percent(row.same_executor)

    def parts(row: Fidelity) -> tuple[str, ...]:
        return tuple(cell for pair in row.parts_us for cell in _both(pair))

    return [
        table(
            "Simulated against measured",
            ("pairs", "p50 measured, ms", "simulated", "off", "p95 measured, ms", "simulated", "off", "per request",
             "same node"),
            quantiles,
            "TTFT of the same requests at the same times: on ranks, and in virtual time with engine and links as they "
            "were calibrated before. Per request: median of |simulated - measured| / measured.",
        ),
        table(
            "Simulated against measured, by component",
            tuple(f"{part.removesuffix('_us')} {kind}" for part in PARTS for kind in ("measured", "simulated")),
            parts,
            "Means in ms. Fetch includes what is hidden behind queue and prefill.",
        ),
    ]  # fmt: skip


def _both(pair: tuple[float, float]) -> tuple[str, str]:
    return number(pair[0] / 1000), number(pair[1] / 1000)


def _off(pair: tuple[float, float]) -> str:
    return f"{(pair[1] / pair[0] - 1) * 100:+.0f} %" if pair[0] > 0 else NOTHING
