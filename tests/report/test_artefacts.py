"""The files of a run: self-contained, whole or absent, readable whatever happened to the run."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from msgspec import structs

from kvshare_research.core.errors import ConfigError
from kvshare_research.metrics.records import CaseResult, load_results
from kvshare_research.report import artefacts, show, write
from tests.metrics.synthetic import make_case

STEMS = {"ttft_by_policy", "ttft_cdf", "cost_parts", "saved_by_overlap", "hit_tokens", "ttft_against_bytes"}


class _Links(HTMLParser):
    """Everything a browser would fetch, and the tags that stay open."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "link", "iframe"}:
            self.fetched.append(tag)
        self.fetched += [
            v or "" for k, v in attrs if k in {"src", "href", "srcset"} and not (v or "").startswith("data:")
        ]
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _cases() -> list[CaseResult]:
    return [make_case("recompute_always", count=12), make_case(count=12)]


def test_a_complete_run_writes_everything_once(tmp_path: Path) -> None:
    provenance: dict[str, Any] = {"commit": "abc", "config": "x: <script>alert(1)</script>", "hardware": {"cores": 2}}
    assert write(_cases(), provenance, tmp_path, "make demo") == tmp_path
    assert {p.name for p in tmp_path.iterdir()} == {
        "results.json",
        "results.parquet",
        "tables.txt",
        "report.html",
        "plots",
    }
    assert {p.name for p in (tmp_path / "plots").iterdir()} == {f"{s}.{kind}" for s in STEMS for kind in ("png", "pdf")}
    back = load_results(tmp_path / "results.json")
    assert list(back.cases) == _cases()
    assert back.provenance["hardware"] == {"cores": 2}
    assert pl.read_parquet(tmp_path / "results.parquet").height == 24
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    links = _Links()
    links.feed(page)
    assert links.fetched == []
    assert links.open == []
    assert "url(" not in page
    assert "@import" not in page
    assert "<script" not in page  # what the config holds is text, not markup
    assert "&lt;script&gt;" in page
    assert page.count("data:image/png;base64,") == len(STEMS)
    assert "make demo" in page
    assert "make demo" in (tmp_path / "tables.txt").read_text(encoding="utf-8")
    assert "PARTIAL" not in page


def test_partial_and_complete_never_share_a_folder(tmp_path: Path) -> None:
    base, ours = _cases()
    cut = replace(ours, outcomes=ours.outcomes[:5], partial_reason="rank 2 stopped")
    folder = tmp_path.with_name(tmp_path.name + "-partial")
    assert write([base, cut], {}, tmp_path, "make demo") == tmp_path.with_name(tmp_path.name + "-partial")
    assert not (tmp_path / "results.json").exists()
    assert load_results(folder / "results.json").partial
    for name in ("tables.txt", "report.html"):
        text = (folder / name).read_text(encoding="utf-8")
        assert "PARTIAL" in text
        assert "rank 2 stopped" in text
    write([base, ours], {}, tmp_path, "make demo")
    before = (tmp_path / "results.json").read_bytes()
    assert not folder.exists()
    assert write([base], {}, folder, "make demo", partial=True, plots=False) == folder
    assert (tmp_path / "results.json").read_bytes() == before


def test_without_plots_the_page_says_so_and_show_prints_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(_cases(), {}, tmp_path, "make demo", plots=False)
    assert "No plots were asked for" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert list((tmp_path / "plots").iterdir()) == []
    show(tmp_path)
    told = capsys.readouterr().out
    assert "Time to first token (measured)" in told
    assert "with plots" not in told
    with pytest.raises(ConfigError, match="cannot read results"):
        show(tmp_path / "elsewhere")


def _broken(name: str) -> list[CaseResult]:
    case = make_case(count=4)
    if name == "no cases":
        return []
    if name == "no outcomes":
        return [replace(case, outcomes=(), expected_requests=0)]
    if name == "all rejected":
        return [make_case("recompute_always", count=4, rejected=4), make_case(count=4, rejected=4)]
    odd = tuple(
        structs.replace(o, logit_fingerprint=(float("nan"),) * 2, ttft_us=0, prefill_us=0) for o in case.outcomes
    )
    return [replace(case, selector="recompute_always", outcomes=odd), replace(case, outcomes=odd)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no cases", "No case was run"),
        ("no outcomes", "no request finished"),
        ("all rejected", "no request finished: quota (4)"),
        ("not a number", "logits of 4 requests are not numbers"),
    ],
)
def test_an_empty_or_broken_run_is_reported_not_crashed(tmp_path: Path, name: str, said: str) -> None:
    folder = write(_broken(name), {}, tmp_path, "")
    for file in ("tables.txt", "report.html"):
        assert said in re.sub(r"\s+", " ", (folder / file).read_text(encoding="utf-8"))
    assert len(load_results(folder / "results.json").cases) == len(_broken(name))
    assert not re.search(r"\b(nan|inf|None)\b", (folder / "tables.txt").read_text(encoding="utf-8"))


def test_a_failure_while_writing_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(_cases(), {}, tmp_path, "first", plots=False)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    def fails(*_: object, **__: object) -> bytes:
        raise RuntimeError("planted")

    monkeypatch.setattr(artefacts, "encode_results", fails)
    with pytest.raises(RuntimeError, match="planted"):
        write(_cases(), {}, tmp_path, "second", plots=False)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_plots_of_an_earlier_run_do_not_stay(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "ttft_by_policy_2.png").write_bytes(b"old")
    write([make_case("recompute_always", count=4, rejected=4)], {}, tmp_path, "")
    assert list((tmp_path / "plots").iterdir()) == []


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        write([], {}, tmp_path / "file" / "below", "")


def test_equal_results_give_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(_cases()[1:], {"commit": "abc"}, tmp_path / name, "make demo")
    for path in (p for p in (tmp_path / "a").rglob("*") if p.is_file()):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path.name


@contextmanager
def room(file_bytes: int) -> Iterator[None]:
    """No file can grow beyond so many bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("plots", [False, True])
def test_a_disk_that_fills_leaves_the_earlier_report_whole(tmp_path: Path, plots: bool) -> None:
    """Whichever file is the first that finds no room: one line, and not a byte of the old report has changed."""
    cases = _cases()
    write(cases, {}, tmp_path, "before", plots=plots)
    before = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    sizes = sorted({len(content) for content in before.values()})
    for file_bytes in (0, *(size - 1 for size in sizes)) if not plots else (sizes[0] - 1, sizes[-1] - 1):
        with room(file_bytes), pytest.raises(ConfigError, match=r"report: cannot write .*: File too large") as caught:
            write(cases, {}, tmp_path, "before", plots=plots)
        assert "\n" not in str(caught.value)
        assert {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
