"""Tables fit 100 columns, say where numbers come from, and never mix what must not be mixed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvshare_research.metrics.records import CaseResult
from kvshare_research.report import build
from kvshare_research.report.artefacts import has_random_weights
from kvshare_research.report.content import Table
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


def test_no_verdict_is_passed_on_a_model_with_random_weights(study: list[CaseResult]) -> None:
    """The figures stay; with a trained model the same cells have a verdict."""
    for random_weights in (False, True):
        tables = [t for t in build(study, random_weights=random_weights).tables if "note's table" in t.title]
        ran = [t for t in tables if "not run" not in t.title]
        assert ran
        assert all((row[-1] == "no verdict") == random_weights for t in ran for row in t.rows)
    target = "kvshare_research.engine.tiny.Tiny"
    assert has_random_weights({"config": {"engine": {"_target_": target}}})
    assert not has_random_weights({"config": {"engine": {"_target_": "kvshare_research.engine.smollm.SmolLm"}}})
