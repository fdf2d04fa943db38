"""The small reproductions stay inside their bands, and their pages show what the command prints."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest

from experiments.table import line, verdicts

ROOT = Path(__file__).parents[2] / "experiments"
NAMES = sorted(path.parent.name for path in ROOT.glob("*/run.py"))


@pytest.mark.parametrize("name", NAMES)
def test_its_page_shows_what_it_computes(name: str) -> None:
    """The very figures where it takes a moment; of a long one, a small setting computes the same quantities."""
    run = importlib.import_module(f"experiments.{name}.run")
    page = (ROOT / name / "README.md").read_text()
    small = getattr(run, "SMALL", None)
    if small is not None:
        for row in verdicts(ROOT / name, run.run(small)):
            assert math.isfinite(row[2]), row
            name_and_theirs, band = " | ".join(line(row).split(" | ")[:2]), line(row).split(" | ")[3]
            assert f"{name_and_theirs} |" in page
            assert f"| {band} |" in page
        return
    rows = verdicts(ROOT / name, run.run())
    assert [row for row in rows if row[-1] not in ("reproduced", "in band")] == []
    assert [line(row) for row in rows if line(row) not in page] == []


def test_every_folder_is_listed_and_says_what_it_claims() -> None:
    listed = (ROOT / "README.md").read_text()
    for page in ROOT.glob("*/README.md"):
        assert f"`{page.parent.name}`" in listed
    for number in range(1, 21):
        assert f"R{number} " in listed or number in range(10, 17)
