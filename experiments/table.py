"""theirs | ours | band | verdict, for one experiment; the bands are fixed in `expected.yaml` before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml


def verdicts(folder: Path, ours: Mapping[str, float]) -> list[tuple[str, float, float, tuple[float, float], str]]:
    """A row per quantity of `expected.yaml`; raises KeyError if one was not computed, or computed and not expected."""
    expected = yaml.safe_load((folder / "expected.yaml").read_text())
    if set(expected) != set(ours):
        raise KeyError(f"{folder.name}: expected {sorted(expected)}, computed {sorted(ours)}")
    rows = []
    for name, row in expected.items():
        low, high = row["band"]
        verdict = "reproduced" if low <= ours[name] <= high else "not reproduced"
        rows.append((name, float(row["theirs"]), ours[name], (low, high), verdict))
    return rows


def show(folder: Path, ours: Mapping[str, float]) -> int:
    """Prints the table; 0 if every quantity is inside its band, else 1."""
    rows = verdicts(folder, ours)
    print("| quantity | theirs | ours | band | verdict |\n|---|---|---|---|---|")
    for name, theirs, value, (low, high), verdict in rows:
        print(f"| {name} | {theirs:g} | {value:.4g} | {low:g} to {high:g} | {verdict} |")
    return int(any(row[-1] != "reproduced" for row in rows))
