"""The files of a run: results.json, results.parquet, tables.txt, report.html and plots/, whole or not at all.

A complete run writes into its folder; a partial one into the folder of that name with `-partial`, so the two never
mix. Every file is written under another name and renamed; results.json comes last: a folder that has it has all.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from kvshare_research.core.errors import ConfigError
from kvshare_research.metrics.fidelity import fidelities
from kvshare_research.metrics.pulls import pulls
from kvshare_research.metrics.records import CaseResult, encode_results, load_results, outcome_frame
from kvshare_research.metrics.summary import Row, summarise
from kvshare_research.metrics.verdict import OURS, overlap_table, slo_rows

from .content import Table, calibration_table, case_tables, fidelity_tables, pull_tables
from .html import Picture, render_html
from .hypothesis import slo_table, verdict_tables
from .notices import notices
from .remarks import explained, left_out
from .tables import as_text

RANDOM_WEIGHTS = "random_weights"  # in the provenance of a sweep
RESULTS = "results.json"
COSTS_KNOWN = "costs known"  # among the notes of a run
HEADLINES = (
    "Time to first token",
    "Saved against",
    "Same answers",
    "Ways of serving",
    "A pull against",
    "Simulated against measured",
    "The note's table",
)
TABLES = "tables.txt"
PARTIAL = "-partial"
WRITING = ".writing-"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything to be said about some results."""

    rows: tuple[Row, ...]
    tables: tuple[Table, ...]
    notices: tuple[str, ...]
    partial: bool


def build(
    results: Sequence[CaseResult], *, partial: bool = False, objective_us: float | None = None, selector: str = OURS,
    record: Mapping[str, Any] | None = None,
) -> Report:  # fmt: skip
    """Rows, tables and notices of these results; pure, so it may be shown before anything is written.

    `objective_us` is the TTFT objective of the throughput table (default: stated in the table); `selector` is the one
    that is held against the note; `record` is the provenance, whose notes say more of the run.
    """
    record = record or {}
    notes: Mapping[str, Any] = record.get("notes") or {}
    rows = summarise(results)
    tables = (
        case_tables(rows)
        + fidelity_tables(fidelities(results))
        + calibration_table(notes.get(COSTS_KNOWN, ()))
        + pull_tables(pulls(results))
        + slo_table(slo_rows(results, objective_us))
    )
    if results:
        cells = overlap_table(results, selector=selector, objective_us=objective_us)
        tables += verdict_tables(cells, random_weights=has_random_weights(record))
    return Report(
        rows=rows,
        tables=tuple(explained(tables)),
        notices=(*left_out(notes), *notices(rows)),
        partial=partial or any(case.incomplete for case in results),
    )


def write(
    results: Sequence[CaseResult],
    provenance: dict[str, Any],
    folder: Path,
    command: str,
    partial: bool = False,
    *,
    plots: bool = True,
    objective_us: float | None = None,
    selector: str = OURS,
) -> Path:
    """Write all files and return the folder they are in: `folder`, or `folder`-partial if the run is partial.

    A complete run removes what a partial one left; a partial one touches nothing complete. `plots` False saves the
    time of drawing. ConfigError if the folder cannot be written or a library for reports is missing.
    """
    report = build(results, partial=partial, objective_us=objective_us, selector=selector, record=provenance)
    whole = folder.with_name(folder.name.removesuffix(PARTIAL))
    unfinished = folder.with_name(whole.name + PARTIAL)
    target = unfinished if report.partial else whole
    try:
        target.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=target, prefix=WRITING))
        try:
            _fill(made, results, report, provenance, command, plots)
            with _undisturbed():
                _publish(made, target)
                if not report.partial:
                    shutil.rmtree(unfinished, ignore_errors=True)
        finally:
            with _undisturbed():
                shutil.rmtree(made, ignore_errors=True)
                with suppress(OSError):  # there are files in it: the rule
                    target.rmdir()
    except ModuleNotFoundError as error:
        raise ConfigError(f"report: {error.name} is missing; install `kvshare_research[report]`") from error
    except OSError as error:
        raise ConfigError(f"report: cannot write {error.filename or target}: {error.strerror}") from error
    return target


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Within, SIGINT and SIGTERM wait for the end of it."""
    if threading.current_thread() is not threading.main_thread():  # signals do not come here
        yield
        return
    came: list[int] = []
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for held in came[:1]:
            signal.raise_signal(held)


def clean(folder: Path) -> None:
    """What a writer of this folder left that was killed outright is gone; only for who is alone with the folder."""
    for place in (folder, folder.with_name(folder.name + PARTIAL)):
        for left in place.glob(f"{WRITING}*"):
            shutil.rmtree(left, ignore_errors=True)


def headlines(report: Report) -> tuple[Table, ...]:
    """The tables that answer what a run was for; the others are in the files."""
    return tuple(t for t in report.tables if t.title.startswith(HEADLINES) and "(not run)" not in t.title)


def has_random_weights(record: Mapping[str, Any]) -> bool:
    """Whether the run, or one of a sweep's, was of a model with random weights, by its provenance."""
    config = record.get("config")
    engine = config.get("engine") if isinstance(config, Mapping) else None
    target = engine.get("_target_") if isinstance(engine, Mapping) else None
    return bool(record.get(RANDOM_WEIGHTS)) or target == "kvshare_research.engine.tiny.Tiny"


def show(folder: Path) -> None:
    """Print the headlines of a written report and say where the rest is; ConfigError if there is no report."""
    stored = load_results(folder / RESULTS)
    report = build(stored.cases, record=stored.provenance)
    print(as_text(headlines(report), report.notices))
    drawn = "with plots" if any((folder / "plots").glob("*")) else "as a page"
    print(f"all {len(report.tables)} tables: {folder / TABLES}\n{drawn}: {folder / 'report.html'}")


def _draw(rows: Sequence[Row], folder: Path) -> list[Picture]:
    from .canvas import render
    from .plots import draw_all

    pictures = []
    for stem, caption, figure in draw_all(rows):
        png = render(figure, "png")
        (folder / f"{stem}.png").write_bytes(png)
        (folder / f"{stem}.pdf").write_bytes(render(figure, "pdf"))
        pictures.append(Picture(stem, caption, png))
    return pictures


def _fill(
    made: Path,
    results: Sequence[CaseResult],
    report: Report,
    provenance: dict[str, Any],
    command: str,
    plots: bool,
) -> None:
    (made / "plots").mkdir()
    pictures = _draw(report.rows, made / "plots") if plots else []
    head = [f"Run again with: {command}"] if command else []
    if report.partial:
        head.insert(0, "PARTIAL: the run did not finish. Do not compare these numbers.")
    (made / TABLES).write_text(as_text(report.tables, report.notices, head), encoding="utf-8")
    page = render_html(
        report.tables,
        pictures,
        provenance=provenance,
        notices=report.notices,
        command=command,
        partial=report.partial,
        drawn=plots,
    )
    (made / "report.html").write_text(page, encoding="utf-8")
    table = io.BytesIO()  # a disk that is full is then an OSError, here as everywhere
    outcome_frame(results).write_parquet(table)
    (made / "results.parquet").write_bytes(table.getvalue())
    (made / RESULTS).write_bytes(
        encode_results(results, provenance=provenance, command=command, partial=report.partial)
    )


def _publish(made: Path, target: Path) -> None:
    """Rename everything into place, results.json last; plots of an earlier run that are not made again are removed."""
    (target / RESULTS).unlink(missing_ok=True)
    (target / "plots").mkdir(exist_ok=True)
    fresh = {p.name for p in (made / "plots").iterdir()}
    for old in (target / "plots").iterdir():
        if old.suffix in {".png", ".pdf"} and old.name not in fresh:
            old.unlink()
    files = sorted((p for p in made.rglob("*") if p.is_file()), key=lambda p: (p.name == RESULTS, p))
    for path in files:
        os.replace(path, target / path.relative_to(made))
