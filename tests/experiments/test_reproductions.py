"""The small reproductions stay inside their bands, and their pages show what the command prints."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest
import yaml

from experiments.table import line, verdicts

ROOT = Path(__file__).parents[2] / "experiments"
NAMES = sorted(path.parent.name for path in ROOT.glob("*/run.py"))
JUDGED = sorted(path.parent.name for path in ROOT.glob("*/expected.yaml"))  # also by commands of other names
GOOD = ("reproduced", "in band", "band set after")
UNSIZED = ("mooncake_bandwidth", "stale_estimates")  # but for `fleet: ...`, in band whatever the setting


def shown(page: str) -> dict[str, tuple[float, str]]:
    """Our figure and the verdict of each quantity, as they stand in a page."""
    table = page.partition("| quantity | theirs | ours | band | verdict |\n|---|---|---|---|---|\n")[2].partition(
        "\n\n"
    )[0]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()]
    return {name: (float(ours), verdict) for name, _, ours, _, verdict in cells}


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
            if name in UNSIZED and not row[0].startswith("fleet: "):
                assert row[-1] in GOOD, row
        return
    rows = verdicts(ROOT / name, run.run())
    assert [row for row in rows if row[-1] not in GOOD] == []
    assert [line(row) for row in rows if line(row) not in page] == []


@pytest.mark.parametrize("name", JUDGED)
def test_a_page_judges_its_figures_by_its_bands(name: str) -> None:
    """Also of a long one, whose figures no test computes. A figure is shown in four digits: at a limit it may be either."""
    page = shown((ROOT / name / "README.md").read_text())
    expected = yaml.safe_load((ROOT / name / "expected.yaml").read_text())
    assert set(expected) == set(page)
    near = [verdicts(ROOT / name, {q: page[q][0] * off for q in expected}) for off in (1 - 5e-4, 1, 1 + 5e-4)]
    for rows in zip(*near, strict=True):
        assert page[rows[0][0]][1] in {row[-1] for row in rows}, rows[1]


def test_what_is_far_from_theirs_is_not_called_reproduced(tmp_path: Path) -> None:
    """In a band as wide as can be; what has no figure, or none but 0, is at best in band unless it is that figure."""
    for theirs, ours, word in (
        (2.23, 48.95, "in band"),
        (32, 8.958, "in band"),
        (4, 5, "reproduced"),
        (4, 2.99, "in band"),
        (-8, -9, "reproduced"),
        (0, 0, "reproduced"),
        (0, 1e-9, "in band"),
        (math.nan, 1, "in band"),
        (4, 101, "not reproduced"),
        (math.nan, 101, "out of band"),
    ):
        (tmp_path / "expected.yaml").write_text(yaml.safe_dump({"q": {"theirs": theirs, "band": [-100, 100]}}))
        assert verdicts(tmp_path, {"q": ours})[0][-1] == word


def test_every_folder_is_listed_and_says_what_it_claims() -> None:
    listed = (ROOT / "README.md").read_text()
    for page in ROOT.glob("*/README.md"):
        assert f"`{page.parent.name}`" in listed
    for number in range(1, 21):
        assert f"R{number} " in listed or number in range(10, 17)
