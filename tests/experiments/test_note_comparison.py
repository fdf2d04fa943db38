"""The verdict on each cell of the note's table follows from what was seen, and can turn out otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.note_comparison import run as note

PAGE = (Path(note.__file__).parent / "README.md").read_text()


@pytest.fixture(scope="module")
def found() -> dict[str, float]:
    return note.run(note.SMALL)


def test_the_page_has_every_cell_with_the_verdict_that_a_run_gives(found: dict[str, float]) -> None:
    """Shares of decisions differ with the number drawn; verdicts do not."""
    for cell in note.CELLS:
        (row,) = [r for r in PAGE.splitlines() if r.startswith(f"| {cell.system} | {cell.column} | {cell.claim} |")]
        assert row.split(" | ")[-2] == cell.holds(found), row
    assert len([c for c in note.CELLS if c.system != note.OURS]) == 5 * 4


def test_the_verdicts_on_other_observations_are_others(found: dict[str, float]) -> None:
    def verdict(system: str, column: str, **other: float) -> str:
        changed = found | {f"{system}: {name.replace('_', ' ')}": value for name, value in other.items()}
        changed |= {"block hashes (vLLM): tokens found of 40 that two prompts share": other.get("tokens", 32)}
        (cell,) = [c for c in note.CELLS if (c.system, c.column) == (system, column)]
        return cell.holds(changed)

    assert verdict("vLLM", "shares", **{"reuse of a stranger's text": 0}) == "holds"
    assert verdict("vLLM", "index", tokens=40) == "holds"
    assert verdict("vLLM", "network-aware", decisions_that_other_bandwidth_change=0.1) == "does not hold"
    assert verdict("GORGO", "network-aware", decisions_that_other_bandwidth_change=0.1) == "holds"
    assert verdict("GORGO", "shares", requests_that_pull_from_another_node=0.1) == "holds"
    own = {"reuse of a stranger's text": 0.0, "reuse of one's own after a flood": 1.0}
    assert verdict("GORGO", "isolation", **own) == "holds"
    assert verdict("Mooncake", "isolation", **own) == "does not hold"
