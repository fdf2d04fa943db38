"""RAGPulse: a week of a university's assistant, with real sessions, shared system prompts and passages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from kvshare_research.core.errors import ConfigError

from .trace import BadLine, Reading, TraceRow, id_list, json_object, read_rows, text_lines, whole
from .trace_requests import TraceWorkload

# Order of the parts in the prompt, as its README lists them; an assumption, and hits by prefix depend on it.
PARTS = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
TABLES = {
    "sys_prompt": ("1_sys_prompt.jsonl", "sys_prompt_id"),
    "passages_ids": ("2_passages.jsonl", "passage_id"),
    "history": ("3_history.jsonl", "history_id"),
    "user_input": ("4_user_input.jsonl", "user_input_id"),
    "web_search": ("5_web_search.jsonl", "web_search_id"),
}
PART_SHIFT = 40  # ids of different parts never meet


@dataclass(slots=True)
class RagPulseLines:
    """Line by line; `lengths` gives the tokens of each id by part."""

    lengths: Mapping[str, Mapping[int, int]]

    def row(self, line: str) -> TraceRow:
        """The row of a line, or BadLine. Times are text in seconds and may step back: rows are sorted afterwards."""
        found = json_object(line, ("timestamp", "input_length", "output_length", "hash_ids", "session_id"))
        if not isinstance(found["hash_ids"], dict):
            raise BadLine(f"`hash_ids` is a {type(found['hash_ids']).__name__}, expected an object of parts")
        ids, lengths = self._stretches(found["hash_ids"])
        input_tokens = whole(found["input_length"], "input_length", 1)
        if not isinstance(found["session_id"], str) or not found["session_id"]:
            raise BadLine(f"`session_id` is `{found['session_id']!r}`, expected a name")
        if sum(lengths) > input_tokens:
            raise BadLine(f"`hash_ids` name {sum(lengths)} tokens, `input_length` is {input_tokens}")
        return TraceRow(
            arrival_us=_seconds(found["timestamp"]) * 1_000_000,
            input_tokens=input_tokens,
            output_tokens=whole(found["output_length"], "output_length", 1),
            ids=np.array(ids, np.int64),
            lengths=np.array(lengths, np.int64),
            space="ragpulse",
            session=found["session_id"],
        )

    def _stretches(self, parts: Mapping[str, Any]) -> tuple[list[int], list[int]]:
        for part in parts:
            if part not in PARTS:
                raise BadLine(f"unknown part `{part}` of `hash_ids`, expected some of {', '.join(PARTS)}")
        ids, lengths = [], []
        for at, part in enumerate(PARTS):
            for name in id_list(parts.get(part, []), f"hash_ids.{part}"):
                if name not in self.lengths[part]:
                    raise BadLine(f"`hash_ids.{part}` names id {name}, which `{TABLES[part][0]}` does not list")
                ids.append((at << PART_SHIFT) | name)
                lengths.append(self.lengths[part][name])
        return ids, lengths


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RagPulseTrace(TraceWorkload):
    """The files below `<data_root>/ragpulse`.

    `reuse` says which reuse a result is about: `prefix` keeps the order of the parts, so that only a common start is
    shared. Reuse wherever a part stands would be position-independent and is not exact: it is only counted
    (`trace_reuse.reuse`), never served.
    """

    reuse: Literal["prefix"] = "prefix"

    def rows(self, reading: Reading) -> Iterator[TraceRow]:
        """All rows by time; the file steps back once, so it is read whole (7,106 rows) and sorted, stable."""
        path = self.path("ragpulse", "0_trace.jsonl")
        parser = RagPulseLines(self.lengths())
        read = read_rows(text_lines(path), str(path), parser.row, self.on_error, reading)
        yield from sorted(read, key=lambda row: row.arrival_us)

    def public_tokens(self, row: TraceRow) -> int:
        """System prompt and passages are the service's; history, search results and question are the session's."""
        private = PARTS.index("history") << PART_SHIFT
        return sum(length for name, length in row.stretches() if name < private)

    def lengths(self) -> dict[str, dict[int, int]]:
        """Tokens of each id, by part; ConfigError for a line that is none."""
        return {part: _table(self.path("ragpulse", file), key) for part, (file, key) in TABLES.items()}


def _table(path: Path, key: str) -> dict[int, int]:
    found = {}
    for number, line in text_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            found[whole(row[key], key)] = whole(row["token_length"], "token_length")
        except (json.JSONDecodeError, KeyError, TypeError, BadLine) as error:
            raise ConfigError(f"{path}:{number}: no length of an id: {error}") from None
    return found


def _seconds(value: Any) -> int:
    if not isinstance(value, str) or not value.isascii() or not value.isdigit():
        raise BadLine(f"`timestamp` is `{value!r}`, expected whole seconds as text")
    return int(value)
