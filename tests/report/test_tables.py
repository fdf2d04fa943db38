"""Tables fit 100 columns, say where numbers come from, and never mix what must not be mixed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvshare_research.metrics.records import CaseResult, Label
from kvshare_research.report import build
from kvshare_research.report.artefacts import RANDOM_WEIGHTS, has_random_weights
from kvshare_research.report.content import Table
from kvshare_research.report.remarks import CHANGED, LINES_LEFT_OUT, left_out
from kvshare_research.report.tables import WIDTH, as_text, split
from tests.metrics.synthetic import make_case, make_study


@pytest.fixture(scope="module")
def study() -> list[CaseResult]:
    return make_study(16)


def test_lines_fit_and_selectors_stay_whole(study: list[CaseResult]) -> None:
    report = build(study)
    text = as_text(report.tables, report.notices, ["Run again with: make demo"])
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert "route_to_longest_prefix" in text
    assert all(len(row) == len(t.columns) for t in report.tables for row in t.rows)


def test_every_table_of_numbers_names_its_label(study: list[CaseResult]) -> None:
    report = build(study)
    assert report.tables
    for table in report.tables:
        assert any(word in table.title for word in ("measured", "emulated", "not run")), table.title
        assert not ("measured" in table.title and "emulated" in table.title)


def test_partial_rows_have_tables_of_their_own() -> None:
    cases = [make_case("recompute_always"), make_case(), replace(make_case(utilisation=0.7), partial=True)]
    report = build(cases)
    assert report.partial
    marked = [t for t in report.tables if "PARTIAL" in t.title]
    whole = [t for t in report.tables if t.title == "Time to first token (measured)"]
    assert len(marked[0].rows) == 1
    assert len(whole[0].rows) == 2
    assert any(n.startswith("Partial: cheapest") for n in report.notices)


@settings(max_examples=40, deadline=None)
@given(
    names=st.integers(1, 3),
    cells=st.lists(
        st.lists(st.text("abc 12", min_size=1, max_size=30), min_size=8, max_size=8), min_size=1, max_size=3
    ),
)
def test_splitting_loses_no_column_and_no_cell(names: int, cells: list[list[str]]) -> None:
    columns = tuple(f"column {i}" for i in range(8))
    table = Table(title="t", columns=columns, names=names, rows=tuple(map(tuple, cells)))
    parts = split(table)
    assert tuple(c for p in parts for c in p.columns[p.names :]) == columns[names:]
    for i, row in enumerate(table.rows):
        assert tuple(c for p in parts for c in p.rows[i][p.names :]) == row[names:]
        assert all(p.rows[i][:names] == row[:names] for p in parts)


def test_what_is_odd_is_said_first() -> None:
    base, ours = make_case("recompute_always"), make_case()
    changed = structs.replace(ours.outcomes[0], output_tokens=(0,), logit_fingerprint=(float("nan"), 0.0), missed=())
    counters = replace(ours.counters, wire_bytes=1)
    text = "\n".join(build([base, replace(ours, outcomes=(changed, *ours.outcomes[1:]), counters=counters)]).notices)
    assert "1 answers differ from recompute" in text
    assert "logits of 1 requests are not numbers" in text
    assert "1 bytes moved" in text
    assert "carry no reason" in text
    assert not build([base, ours]).notices


def test_lines_that_were_left_out_are_said_first() -> None:
    told = {"count": 5, "first": [f"/data/some trace.jsonl:{n}: `x` is `{n}`, expected 9" for n in (7, 12, 13, 14)]}
    notes = {"lines left out: a": told, "lines left out: b": told, "cpu seconds: a": 1}
    cases = [make_case("recompute_always"), make_case()]
    report = build(cases, record={"notes": notes})
    assert report.notices[0] == (
        "5 lines of the trace left out: line 7 of some trace.jsonl: `x` is `7`, expected 9; line 12 of some "
        "trace.jsonl: `x` is `12`, expected 9; line 13 of some trace.jsonl: `x` is `13`, expected 9; and 2 more."
    )
    assert len(report.notices) == 1, "what each case left out alike is said once"
    assert "Read this first\n- 5 lines of the trace left out" in as_text(report.tables, report.notices)
    one = {"count": 1, "first": ["client 3: no published lengths"]}
    assert left_out({f"{LINES_LEFT_OUT}: a": one}) == ["1 part of the trace left out: client 3: no published lengths."]


def test_a_simulation_is_not_called_measured_and_a_star_is_explained() -> None:
    names = ("recompute_always", "cheapest")
    cases = [replace(make_case(name, overlap=0.1), label=Label.SIMULATED, workload="trace*") for name in names]
    tables = build(cases).tables
    text = as_text(tables)
    assert "|predicted - simulated| / simulated" in text
    assert "measured" not in text
    assert "note's table" not in text, "nothing of it was run"
    starred = [t for t in tables if any("trace*" in note for note in t.notes)]
    assert starred
    assert all(t.notes[-1] == CHANGED for t in starred)
    plain = build([replace(case, workload="trace") for case in cases]).tables
    assert not any(CHANGED in t.notes for t in plain)


def test_a_table_in_parts_has_parts_alike() -> None:
    columns = ("name", *("a column of 20 cells" for _ in range(6)))
    table = Table(title="t", columns=columns, names=1, rows=(("x", *("y" * 20 for _ in range(6))),))
    assert [len(part.columns) - 1 for part in split(table)] == [3, 3], "and not 4 and 2"


def test_no_verdict_is_passed_on_a_model_with_random_weights(study: list[CaseResult]) -> None:
    """The figures stay; with a trained model the same cells have a verdict."""
    for random_weights in (False, True):
        tables = [t for t in build(study, record={RANDOM_WEIGHTS: random_weights}).tables if "note's table" in t.title]
        ran = [t for t in tables if "not run" not in t.title]
        assert ran
        assert all((row[-1] == "no verdict") == random_weights for t in ran for row in t.rows)
    target = "kvshare_research.engine.tiny.Tiny"
    assert has_random_weights({"config": {"engine": {"_target_": target}}})
    assert not has_random_weights({"config": {"engine": {"_target_": "kvshare_research.engine.smollm.SmolLm"}}})
