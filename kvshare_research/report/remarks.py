"""What is said beside the figures: what was left out of a trace, and what a star at a name means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from .content import Table

LINES_LEFT_OUT = "lines left out"  # how such notes of a run begin
SHOWN = 3  # reasons; all are in results.json, as far as they were kept
CHANGED = "*: with values changed by hand; the configuration in report.html has them all."

_AT_LINE = re.compile(r"(?P<file>.+?):(?P<line>\d+): (?P<why>.+)", re.DOTALL)
_STARRED = re.compile(r"\w\*(?=[\s,.;)]|$)")


def left_out(notes: Mapping[str, Any]) -> list[str]:
    """What cases left out of a trace (`on_error=skip`) and why, each such account once."""
    said = []
    for name, found in notes.items():
        if name.startswith(LINES_LEFT_OUT):
            said.append(in_words(int(found["count"]), [str(reason) for reason in found["first"]]))
    return list(dict.fromkeys(said))


def in_words(count: int, reasons: Sequence[str]) -> str:
    """How many lines of a trace were left out, and why the first ones were."""
    lines = [_AT_LINE.fullmatch(reason) for reason in reasons]
    what = "line" if all(lines) else "part"
    shown = [
        f"line {found['line']} of {PurePath(found['file']).name}: {found['why']}" if found else reason
        for found, reason in zip(lines[:SHOWN], reasons, strict=False)
    ]
    more = f"; and {count - len(shown):,} more" if count > len(shown) else ""
    return f"{count:,} {what}{'s' if count != 1 else ''} of the trace left out: {'; '.join(shown)}{more}."


def explained(tables: Iterable[Table]) -> list[Table]:
    """The tables, with what a star means beneath each that names a choice with one."""
    return [replace(t, notes=(*t.notes, CHANGED)) if _has_star(t) else t for t in tables]


def _has_star(table: Table) -> bool:
    names = (cell for row in table.rows for cell in row[: table.names])
    return any(_STARRED.search(text) for text in (table.title, *table.notes, *names))
