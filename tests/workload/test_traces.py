"""Traces: each line that broke users' tools is decided, whole files are refused, and published hit figures come out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from kvshare_research.core.errors import ConfigError
from kvshare_research.workload.azure import AzureLines
from kvshare_research.workload.mooncake import MooncakeLines, MooncakeTrace
from kvshare_research.workload.ragpulse import RagPulseLines, RagPulseTrace
from kvshare_research.workload.trace import BadLine, Reading, read_rows, text_lines
from kvshare_research.workload.trace_requests import TraceWorkload, content
from kvshare_research.workload.trace_reuse import reuse

from .kit import given

DATA = os.environ.get("KVSHARE_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="public traces are where KVSHARE_DATA says")


def line(**changes: object) -> str:
    return json.dumps({"timestamp": 0, "input_length": 1024, "output_length": 8, "hash_ids": [0, 1]} | changes)


def refusal(text: str, *before: str) -> str:
    parser = MooncakeLines()
    for earlier in before:
        parser.row(earlier)
    with pytest.raises(BadLine) as caught:
        parser.row(text)
    return str(caught.value)


# What users' tools met (the same cases as `edge_cases/traces.jsonl`), and what becomes of each here.
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (line(input_length=20), "`hash_ids` has 2 ids, 20 tokens in blocks of 512 need 1"),
        (line(input_length=2000, hash_ids=[0]), "`hash_ids` has 1 ids, 2000 tokens in blocks of 512 need 4"),
        (line(timestamp="1753694362340138614"), "`timestamp` is `'1753694362340138614'`, expected a number"),
        (line(hash_ids={"sys_prompt": [1]}), "`hash_ids` is `{'sys_prompt': [1]}`, expected a list of ids"),
        (line(input_length=1536, hash_ids=[7, 9, 7]), "`hash_ids` has an id twice: ids of a chain are different"),
        (line(output_length=0), "`output_length` is `0`, expected at least 1"),
        (line(input_length=0, hash_ids=[]), "`input_length` is `0`, expected at least 1"),
        (line(input_length=-5), "`input_length` is `-5`, expected at least 1"),
        ('{"timestamp": 950, "input_length": 512, "output_length": 4}', "`hash_ids` is missing"),
        (line(timestamp=float("nan")), "`NaN` is no number in JSON"),
        (line(input_length=1024.0), "`input_length` is `1024.0`, expected a whole number"),
        (line(input_length=True, hash_ids=[0]), "`input_length` is `True`, expected a whole number"),
        (line(chat_id=159), "unknown key `chat_id`"),
        ("<html><body>301 Moved Permanently</body></html>", "not JSON: Expecting value at column 1"),
        ("version https://git-lfs.github.com/spec/v1", "not JSON: Expecting value at column 1"),
        ('{"timestamp": 980, "hash_ids": [0, 1, 2', "not JSON: Expecting ',' delimiter at column 40"),
        ("\ufeff" + line(), "a byte-order mark, expected one at most at the start of the file"),
        ("[1]", "the line is a list, expected an object"),
        (line(hash_ids=[0, 1 << 63]), f"`hash_ids[1]` is `{1 << 63}`, expected at least 0"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_request_is_refused_with_its_reason(text: str, reason: str) -> None:
    assert refusal(text).startswith(reason)


def test_time_and_parents_are_held_against_earlier_lines() -> None:
    assert refusal(line(timestamp=100), line(timestamp=401)) == "`timestamp` is 100, before 401 of an earlier line"
    told = refusal(line(hash_ids=[5, 1]), line())
    assert told == "`hash_ids` has id 1 elsewhere than after id 0, where it stood: ids are not chained"


def test_a_refused_line_leaves_no_trace() -> None:
    parser = MooncakeLines()
    with pytest.raises(BadLine):
        parser.row(line(timestamp=900, hash_ids=[5, 5]))
    assert parser.row(line(timestamp=1, hash_ids=[6, 5])).ids.tolist() == [6, 5]


def test_ids_of_64_bits_stay_apart() -> None:
    """Ids that agree in their low 32 bits name different text."""
    parser = MooncakeLines()
    large = parser.row(line(hash_ids=[4294967297, 8589934593]))
    small = parser.row(line(timestamp=1, hash_ids=[1, 12884901889]))
    tokens = [content(row, i, 0) for i, row in enumerate((large, small))]
    assert not any(np.array_equal(tokens[0][a : a + 512], tokens[1][b : b + 512]) for a in (0, 512) for b in (0, 512))


def test_content_is_equal_as_far_as_ids_are() -> None:
    """The common blocks have equal tokens; the last, partial ones, other spaces and other ids have not."""
    parser = MooncakeLines()
    one = parser.row(line(input_length=1100, hash_ids=[0, 1, 2]))
    two = parser.row(line(input_length=1300, hash_ids=[0, 1, 3]))
    a, b = content(one, 0, 0), content(two, 1, 0)
    assert (len(a), len(b)) == (1100, 1300)
    assert np.array_equal(a[:1024], b[:1024])
    assert not np.array_equal(a[1024:1100], b[1024:1100])
    assert not np.array_equal(a[:512], content(two, 1, 1)[:512])


def test_skipped_lines_are_counted_and_failing_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "mooncake").mkdir()
    path = tmp_path / "mooncake" / "t.jsonl"
    path.write_text("\n".join([line(), "", line(input_length=-1), line(timestamp=5), "{"]))
    reading = Reading()
    rows = list(MooncakeTrace(data_root=str(tmp_path), file="t.jsonl", on_error="skip").rows(reading))
    assert (len(rows), reading.rows, reading.blank, reading.refused) == (2, 2, 1, 2)
    assert reading.reasons[0] == f"{path}:3: `input_length` is `-1`, expected at least 1"
    with pytest.raises(ConfigError, match=r"t\.jsonl:3: `input_length` is `-1`"):
        list(MooncakeTrace(data_root=str(tmp_path), file="t.jsonl").rows(Reading()))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the trace is empty"),
        (b"\n\n", "the trace is empty"),
        (b"<!DOCTYPE html><html>", "this is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "this is a Git LFS pointer"),
        (b"\x28\xb5\x2f\xfd\x04", "not text"),
    ],
)
def test_files_that_cannot_be_traces_are_refused_whatever_on_error_says(
    data: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        list(read_rows(text_lines(path), str(path), MooncakeLines().row, "skip", Reading()))


def test_a_mark_at_the_start_of_the_file_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\ufeff" + line())
    assert len(list(read_rows(text_lines(path), str(path), MooncakeLines().row, "fail", Reading()))) == 1


def test_a_trace_without_a_good_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match="no line of the trace is a request; 1 were refused"):
        list(read_rows(text_lines(path), str(path), MooncakeLines().row, "skip", Reading()))


RAG = {"sys_prompt": {8302: 512}, "passages_ids": {}, "history": {}, "web_search": {}, "user_input": {26923: 9}}


def test_ragpulse_lines() -> None:
    """Parts in their order, lengths from the tables; unknown ids, parts and times are refused."""
    good = {"timestamp": "82", "input_length": 600, "output_length": 192, "session_id": "s"}
    parts = {"user_input": [26923], "sys_prompt": [8302]}
    row = RagPulseLines(RAG).row(json.dumps(good | {"hash_ids": parts}))
    assert [tokens for _, tokens in row.stretches()] == [512, 9]
    for change, reason in (
        ({"hash_ids": {"sys_prompt": [1]}}, "`hash_ids.sys_prompt` names id 1, which"),
        ({"hash_ids": {"prompt": []}}, "unknown part `prompt`"),
        ({"hash_ids": [8302]}, "`hash_ids` is a list"),
        ({"hash_ids": parts, "timestamp": 82}, "`timestamp` is `82`, expected whole seconds as text"),
        ({"hash_ids": parts, "input_length": 100}, "`hash_ids` name 521 tokens"),
    ):
        with pytest.raises(BadLine) as caught:
            RagPulseLines(RAG).row(json.dumps(good | change))
        assert str(caught.value).startswith(reason)


def test_azure_lines() -> None:
    parser = AzureLines()
    rows = [parser.row(f"2023-11-16 18:17:0{s}.9799600,4808,10\r\n") for s in (3, 4)]
    assert [row.arrival_us for row in rows] == [0, 1_000_000]
    for text in (
        "2023-11-16 18:17:01.0,1,1",
        "x,1,1",
        "2023-11-16 18:17:09,1",
        "2023-11-16 18:17:09,0,1",
        "2023-11-16 18:17:09,-1,1",
    ):
        with pytest.raises(BadLine):
            parser.row(text)


def test_items_have_scopes_tenants_and_times() -> None:
    """The first block is public, the rest its tenant's; a lineage keeps its tenant and its node."""

    class Two(TraceWorkload):
        def rows(self, reading):
            parser = MooncakeLines()
            yield from (parser.row(line(timestamp=t)) for t in (0, 10))

        def public_tokens(self, row):
            return 512

    first, second = Two(data_root=None, speed=2.0).stream(given("demo", node_count=3))
    assert [s.token_count for s in first.request.segments] == [512, 512]
    assert first.request.segments[0].scope_id == 0
    assert (first.request.tenant_id, first.request.ingress) == (second.request.tenant_id, second.request.ingress)
    assert second.request.arrival_us == 5_000


@needs_data
def test_published_hit_figures() -> None:
    """Mooncake's conversations 37.4 %; RAGPulse 31.5 % by prefix and 72.0 % anywhere, of the tokens its ids name."""
    mooncake = reuse(MooncakeTrace(data_root=DATA).rows(Reading()))
    assert mooncake.requests == 12_031
    assert round(100 * mooncake.chain_ratio, 1) == 37.4
    rag = reuse(RagPulseTrace(data_root=DATA).rows(Reading()))
    assert rag.requests == 7_106
    assert (round(100 * rag.chain_ratio, 1), round(100 * rag.anywhere_ratio, 1)) == (31.5, 72.0)


@needs_data
def test_every_line_of_the_collection_is_decided() -> None:
    """Read one by one after the first, each line of the shared collection is either a row or a reason."""
    path = Path(str(DATA)) / "edge_cases" / "traces.jsonl"
    if not path.exists():
        pytest.skip("no collection of edge cases")
    decided = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            MooncakeLines().row(json.loads(text)["line"])
            decided[number] = ""
        except BadLine as error:
            decided[number] = str(error)
    # Accepted alone: the baseline, both lines of 64-bit ids, and those that only contradict others (time, parents).
    assert [n for n, reason in decided.items() if not reason] == [1, 4, 5, 8, 10]


def test_a_trace_that_is_not_there_is_named_with_the_nearest_that_is(tmp_path: Path) -> None:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "conversation_trace.jsonl").write_text(line())
    with pytest.raises(ConfigError, match=r"did you mean `conversation_trace\.jsonl`\?"):
        MooncakeTrace(data_root=str(tmp_path), file="conversation.jsonl").path("mooncake", "conversation.jsonl")
    with pytest.raises(ConfigError, match="set `data_root` to the folder that holds `x/y`"):
        MooncakeTrace(data_root=str(tmp_path)).path("x", "y")


def test_a_root_that_is_the_folder_of_the_trace_itself_is_told_the_one_above(tmp_path: Path) -> None:
    folder = tmp_path / "mooncake"
    folder.mkdir()
    (folder / "t.jsonl").write_text("")
    with pytest.raises(ConfigError, match=f"did you mean `{tmp_path}`"):
        list(MooncakeTrace(data_root=str(folder), file="t.jsonl").rows(Reading()))
