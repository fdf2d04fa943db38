"""All runs of a sweep in one report: seeds become intervals, other differences labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvshare_research.core.errors import ConfigError
from kvshare_research.metrics.records import load_results
from kvshare_research.report.artefacts import RESULTS, build, write
from kvshare_research.report.sweep import differences, main, sweep
from tests.metrics.synthetic import make_case


def left(folder: Path, name: str, config: dict[str, Any], partial: bool = False) -> None:
    """A run of one case, as the main command leaves it: seeds of a case are relative to the run's own."""
    write([make_case(seed=0, count=24)], {"config": config}, folder / name, "", partial, plots=False)


def config(seed: int, nodes: int) -> dict[str, Any]:
    return {"seed": seed, "driver": {"_target_": "a.simulator.S", "node_count": nodes}, "output_root": str(seed)}


def test_what_differs_is_a_label_and_what_cases_name_is_not() -> None:
    first, second = (
        config(0, 2) | {"selector": {"_target_": "s.x.X"}},
        config(1, 4) | {"selector": {"_target_": "s.y.Y"}},
    )
    assert differences([first, first]) == [(), ()]
    assert differences([first, second]) == [(("driver.node_count", "2"),), (("driver.node_count", "4"),)]
    tuned = [{"selector": {"_target_": "s.x.X", "weight": w}} for w in (1, 2)]
    assert differences(tuned) == [(("selector.weight", "1"),), (("selector.weight", "2"),)]
    other = [{"retention": {"_target_": "r.lru.Lru"}}, {"retention": {"_target_": "r.fifo.Fifo"}}]
    assert differences(other) == [(("retention", "lru"),), (("retention", "fifo"),)]


def test_seeds_of_one_setting_are_one_row(tmp_path: Path) -> None:
    for nodes in (2, 4):
        for seed in (0, 1):
            left(tmp_path, f"{nodes}{seed}", config(seed, nodes))
    left(tmp_path, "x", config(9, 9), partial=True)
    folder = sweep(tmp_path)
    cases = load_results(folder / RESULTS).cases
    assert sorted((dict(c.extra)["driver.node_count"], c.seed) for c in cases) == [
        ("2", 0),
        ("2", 1),
        ("4", 0),
        ("4", 1),
    ]
    assert len({c.key for c in cases}) == 2
    assert sweep(tmp_path) == folder  # its own report is no run
    assert (folder / "report.html").exists()


def test_rows_stand_in_an_order_and_what_was_left_out_is_still_said(tmp_path: Path) -> None:
    notes = {"lines left out: a": {"count": 1, "first": ["t.jsonl:7: `NaN` is no number in JSON"]}}
    for folder, selector, nodes in (("a", "weighted", 16), ("b", "cheapest", 4), ("c", "cheapest", 16), ("d", "x", 4)):
        record = {"config": config(0, nodes), "notes": notes}
        write([make_case(selector, count=24)], record, tmp_path / folder, "", plots=False)
    folder = sweep(tmp_path)
    stored = load_results(folder / RESULTS)
    report = build(stored.cases, record=stored.provenance)
    table = report.tables[0]
    assert [row[: table.names] for row in table.rows] == [
        ("4", "cheapest"),
        ("4", "x"),
        ("16", "cheapest"),
        ("16", "weighted"),
    ]
    assert [row.key.extra[0][1] for row in report.rows] == ["4", "16", "16", "4"], "so are notices and legends"
    assert report.notices[0] == "1 line of the trace left out: line 7 of t.jsonl: `NaN` is no number in JSON."
    assert report.notices[0] in (folder / "tables.txt").read_text()


def test_what_cannot_be_one_report_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="no run has left"):
        sweep(tmp_path)
    left(tmp_path, "a", config(0, 2))
    left(tmp_path, "b", config(0, 2))
    with pytest.raises(ConfigError, match="the same case"):
        sweep(tmp_path)
    assert main([str(tmp_path)]) == main([]) == 2
    assert "expected one" in capsys.readouterr().err
