"""What a reader must know before believing a number: odd cases, requests that were not served and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kvshare_research.metrics.summary import Row

from .text import setting

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def notices(rows: Sequence[Row]) -> list[str]:
    """What a reader must know before believing a number. Empty when nothing is odd."""
    said = ["No case was run: there is nothing to show."] if not rows else []
    for row in rows:
        name = f"{row.key.selector}, {setting(row.key)}"
        if row.partial:
            why = "; ".join(row.partial_reasons) or f"{row.done + row.rejected + row.failed} of {row.expected} requests"
            said.append(f"Partial: {name}: {why}.")
        said += [f"{name}: {text}" for text in _oddities(row)]
    said += [
        f"{workload}: the trace does not tell what prompts say, so no two share anything: all is recomputed under "
        "every selector."
        for workload in dict.fromkeys(row.key.workload for row in rows if not row.content_known)
    ]
    return said


def _oddities(row: Row) -> list[str]:
    said = []
    if not row.done:
        why = ", ".join(f"{reason} ({n})" for reason, n in alike(row.refusals))
        said.append(f"no request finished{': ' + why if why else ''}.")
    elif row.rejected or row.failed:
        why = ", ".join(f"{reason} ({n})" for reason, n in alike(row.refusals))
        said.append(f"{row.rejected} rejected, {row.failed} failed: {why}.")
    if row.savings and row.savings.breaks_bound and row.idle:
        said.append("saves more than it reuses, which cannot be: look at the measurement.")
    if row.savings and row.savings.baseline_note:
        said.append(f"compared with recompute_always under {row.savings.baseline_note}.")
    if row.savings and not row.savings.pairs and row.done:
        said.append("no request in common with recompute_always: nothing to compare.")
    if row.identity and row.identity.identical < row.identity.compared:
        said.append(f"{row.identity.compared - row.identity.identical} answers differ from recompute.")
    if row.identity and row.identity.not_a_number:
        said.append(f"logits of {row.identity.not_a_number} requests are not numbers.")
    if row.planned_bytes and row.wire_bytes != row.planned_bytes:
        said.append(f"{row.wire_bytes:,} bytes moved, {row.planned_bytes:,} planned (refusals and fallbacks differ).")
    if row.steadiness and row.steadiness.trouble:
        said.append(f"{row.steadiness.trouble}: latencies depend on the run's length.")
    if row.reuse.unexplained:
        said.append(f"{row.reuse.unexplained:,} computed tokens carry no reason.")
    return said


def alike(reasons: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """The same (reason, requests), reasons that differ in numbers only as one: `needs 40 to 237 blocks`."""
    found: dict[tuple[str, ...], list[tuple[list[str], int]]] = {}
    for reason, count in reasons:
        found.setdefault(tuple(_NUMBER.split(reason)), []).append((_NUMBER.findall(reason), count))
    told = []
    for words, rows in found.items():
        columns = zip(*(numbers for numbers, _ in rows), strict=True)
        ends = [sorted(set(column), key=float) for column in columns]
        between = [each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in ends]
        text = "".join(part for pair in zip(words, [*between, ""], strict=True) for part in pair)
        told.append((text, sum(count for _, count in rows)))
    return sorted(told, key=lambda row: -row[1])
