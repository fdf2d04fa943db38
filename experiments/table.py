"""theirs | ours | band | verdict, for one experiment; the bands are in `expected.yaml`, set before it ran or marked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import yaml

from kvshare_research.metrics.steady import Steadiness

NEAR = 0.25  # of theirs: so far off a figure may be and be called reproduced
CONDITIONS: list[tuple[str, Steadiness | None]] = []  # (policy, warm-up and queue) of each simulated case, in order


def verdicts(folder: Path, ours: Mapping[str, float]) -> list[tuple[str, float, float, tuple[float, float], str]]:
    """A row per quantity of `expected.yaml`; raises KeyError if one was not computed, or computed and not expected.

    Reproduced is what lies in its band and within a quarter of theirs; further off it is in band, and so is what has no
    quarter because theirs is 0. `theirs: .nan` stands for a quantity that nobody has published; `after: true` for a
    band that was set once the result was known, which can reproduce nothing.
    """
    expected = yaml.safe_load((folder / "expected.yaml").read_text())
    if set(expected) != set(ours):
        raise KeyError(f"{folder.name}: expected {sorted(expected)}, computed {sorted(ours)}")
    rows = []
    for name, row in expected.items():
        low, high = row["band"]
        theirs, inside = float(row["theirs"]), low <= ours[name] <= high
        if row.get("after", False):
            words = ("band set after", "out of band")
        else:
            near = abs(ours[name] - theirs) <= NEAR * abs(theirs)  # never of what is not a number
            words = ("reproduced" if near else "in band", "out of band" if math.isnan(theirs) else "not reproduced")
        rows.append((name, theirs, ours[name], (low, high), words[not inside]))
    return rows


def line(row: tuple[str, float, float, tuple[float, float], str]) -> str:
    """The row as it stands in a page."""
    name, theirs, value, (low, high), verdict = row
    return (
        f"| {name} | {'-' if math.isnan(theirs) else f'{theirs:g}'} | {value:.4g} | {low:g} to {high:g} | {verdict} |"
    )


def show(folder: Path, ours: Mapping[str, float]) -> int:
    """Prints the table; 0 if every quantity is inside its band, else 1."""
    rows = verdicts(folder, ours)
    print("| quantity | theirs | ours | band | verdict |\n|---|---|---|---|---|")
    print("\n".join(line(row) for row in rows))
    if CONDITIONS:
        print(f"\n{conditions()}")
    return int(any(row[-1] in ("not reproduced", "out of band") for row in rows))


def conditions() -> str:
    """How many simulated cases were steady, and what was wrong with each of the others."""
    found = [(i, name, steady.trouble if steady else "") for i, (name, steady) in enumerate(CONDITIONS, 1)]
    troubled = [f"{i} ({name}) {trouble}" for i, name, trouble in found if trouble]
    others = ", ".join(troubled) or "no other"
    return f"Of {len(found)} simulated cases {len(found) - len(troubled)} were steady; {others}."
