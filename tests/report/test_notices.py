"""What is said first: why requests were not served, in few words, and what a trace does not tell."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvshare_research.report import build
from kvshare_research.report.notices import alike
from tests.metrics.synthetic import make_case

REASONS = st.builds("needs {} blocks, the pool has {}".format, st.integers(0, 300), st.integers(0, 9))
OTHERS = st.sampled_from(["no node is alive", "10.0.0.1: gone", "quota 1.5 of 2", ""])


def test_reasons_that_differ_in_numbers_only_are_one() -> None:
    told = [("needs 237 blocks, the pool has 39", 1), ("no node is alive", 2), ("needs 40 blocks, the pool has 39", 83)]
    assert alike(told) == [("needs 40 to 237 blocks, the pool has 39", 84), ("no node is alive", 2)]


@given(st.lists(st.tuples(st.one_of(REASONS, OTHERS), st.integers(1, 50)), max_size=30))
def test_no_refused_request_is_lost_and_one_alone_is_told_as_it_is(told: list[tuple[str, int]]) -> None:
    found = alike(told)
    assert sum(count for _, count in found) == sum(count for _, count in told)
    assert [count for _, count in found] == sorted((count for _, count in found), reverse=True)
    assert len({text for text, _ in found if text.startswith("needs")}) <= 1
    assert all(alike([row]) == [row] for row in told)


def test_a_trace_without_content_says_so_once() -> None:
    cases = [replace(make_case(name), content_known=False) for name in ("recompute_always", "cheapest")]
    said = [text for text in build(cases).notices if "all is recomputed under every selector" in text]
    assert len(said) == 1
    assert not [text for text in build([make_case()]).notices if "every selector" in text]


def test_the_load_of_a_trace_is_never_called_idle() -> None:
    for recorded in (False, True):
        report = build([replace(make_case(), recorded=recorded, partial=True)])
        words = " ".join([*report.notices, *(note for table in report.tables for note in table.notes)])
        assert ("arrivals as recorded" in words) == recorded
        assert ("load idle" in words) == (", idle, " in words) == (not recorded)
