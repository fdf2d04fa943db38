"""Progress is for people at rank 0: a bar on a terminal, lines in a log, silence elsewhere."""

from __future__ import annotations

import io

from kvshare_research.report import progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _job(stream: io.StringIO, rank: int = 0) -> str:
    with progress(2, rank=rank, stream=stream) as told:
        told.stage("calibrating")
        told.stage("idle, 50 % overlap", 200)
        for i in range(200):
            told.advance(note=f"request {i}")
        told.say("[kept] as it is")
    return stream.getvalue()


def test_other_ranks_are_silent() -> None:
    assert _job(io.StringIO(), rank=1) == _job(_Terminal(), rank=3) == ""


def test_without_a_terminal_few_plain_lines() -> None:
    lines = _job(io.StringIO()).splitlines()
    assert lines[:2] == ["calibrating", "idle, 50 % overlap: 200 steps"]
    assert lines[-2:] == ["idle, 50 % overlap: 200 of 200, request 199", "[kept] as it is"]
    assert len(lines) == 13
    assert "\x1b" not in "".join(lines)


def test_a_terminal_gets_a_bar_with_what_is_happening() -> None:
    shown = _job(_Terminal())
    assert "idle, 50 % overlap" in shown
    assert "200/200" in shown
    assert "2/2" in [line for line in shown.splitlines() if "all " in line][-1], "the last stage is over, too"
    assert "[kept] as it is" in shown


def test_a_stage_without_a_total_does_not_take_that_of_the_one_before() -> None:
    out = _Terminal()
    with progress(stream=out) as told:
        told.stage("reading", 120)
        told.advance(120)
        told.stage("compiling")
        told.advance(3)
    last = [line for line in out.getvalue().splitlines() if "compiling" in line][-1]
    assert "3/?" in last


def test_advancing_without_a_total_does_not_fail() -> None:
    out = io.StringIO()
    with progress(stream=out) as told:
        told.advance(3)
        told.stage("loading")
        told.advance()
    assert out.getvalue() == "loading\n"
