"""Claude Code sessions (kv-cache-tester): long agent conversations in blocks of 64 tokens, ids local to a session."""

from __future__ import annotations

import heapq
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final
from zlib import crc32

import numpy as np

from kvshare_research.core.errors import ConfigError

from .trace import BadLine, Reading, TraceRow, blocks_needed, id_list, number, whole
from .trace_requests import TraceWorkload

UNIT_TOKENS = 64
SESSION_SHIFT = 40
SHARED_BIT = 1 << 62  # marks ids that name a block of a system prompt, by model and sizes
REASONS_SHOWN = 20


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeCodeTrace(TraceWorkload):
    """The first `session_count` different sessions of `<data_root>/claude_code/traces_710.tar.zst`.

    When sessions begin is not in the data: they are `session_gap_s` apart (composed). Sessions that repeat another's
    requests are left out. Ids are local to a session; with `shared_system` the leading blocks of tools and system
    prompt are taken to be equal where model and both sizes are (an assumption; composed). An output of 0 tokens still
    has a first token here, since its prompt fills the cache.
    """

    session_count: int = 50
    session_gap_s: float = 30.0
    shared_system: bool = True

    @property
    def block_tokens(self) -> int:
        return UNIT_TOKENS

    def public_tokens(self, row: TraceRow) -> int:
        """The blocks of tools and system prompt."""
        return int((row.ids >= SHARED_BIT).sum()) * UNIT_TOKENS

    def rows(self, reading: Reading) -> Iterator[TraceRow]:
        """The sessions' requests, merged by time."""
        path = self.path("claude_code", "traces_710.tar.zst")
        sessions = []
        for order, (content, first_id) in enumerate(self._sessions(path, reading)):
            start_us = int(order * self.session_gap_s * 1e6)
            rows = self._session(content, first_id, start_us, reading)
            sessions.append(sorted(rows, key=lambda row: row.arrival_us))
        for row in heapq.merge(*sessions, key=lambda row: row.arrival_us):
            reading.rows += 1
            yield row

    def _sessions(self, path: Path, reading: Reading) -> Iterator[tuple[Mapping[str, Any], int]]:
        """Each session and where its ids begin among those of all."""
        seen: set[tuple[Any, ...]] = set()
        for name, data in _members(path):
            try:
                content = json.loads(data)
                requests = tuple((r["in"], r["out"], r["t"]) for r in content["requests"] if "in" in r)
                first_id = int(content["id"].rpartition("_")[2]) << SESSION_SHIFT
            except (ValueError, KeyError, TypeError) as error:
                self._bad(reading, f"{name}: no session: {error}")
                continue
            if requests in seen:
                reading.kinds["session repeated"] += 1
                continue
            seen.add(requests)
            yield content, first_id
            if len(seen) == self.session_count:
                return

    def _session(
        self, content: Mapping[str, Any], first_id: int, start_us: int, reading: Reading
    ) -> Iterator[TraceRow]:
        """The session's requests and, in their place, those of its sub-agents, which number on in the same space."""
        name = str(content["id"])
        for request in content["requests"]:
            if request.get("type") == "subagent":
                nested = dict(request) | {"id": f"{name}/{request.get('agent_id')}"}
                yield from self._session(nested, first_id, start_us + _us(request["t"]), reading)
                continue
            try:
                yield self._row(request, content, first_id, start_us)
            except (BadLine, KeyError) as error:
                self._bad(reading, f"{name}: {error}")

    def _row(self, request: Mapping[str, Any], content: Mapping[str, Any], first_id: int, start_us: int) -> TraceRow:
        input_tokens = whole(request["in"], "in", 1)
        ids = id_list(request["hash_ids"], "hash_ids")
        blocks_needed(ids, "hash_ids", input_tokens, UNIT_TOKENS, whole_only=True)
        local = first_id + np.array(ids, np.int64)
        if self.shared_system:
            sizes = (whole(content["tool_tokens"], "tool_tokens"), whole(content["system_tokens"], "system_tokens"))
            shared = min(len(local), sum(sizes) // UNIT_TOKENS)
            local[:shared] = SHARED_BIT + _number(str(request["model"]), *sizes) + np.arange(shared)
        return TraceRow(
            arrival_us=start_us + _us(request["t"]),
            input_tokens=input_tokens,
            output_tokens=max(1, whole(request["out"], "out")),
            ids=local,
            unit_tokens=UNIT_TOKENS,
            space="claude_code",
            session=str(content["id"]),
        )

    def _bad(self, reading: Reading, reason: str) -> None:
        if self.on_error == "fail":
            raise ConfigError(f"claude_code: {reason}")
        reading.refused += 1
        if len(reading.reasons) < REASONS_SHOWN:
            reading.reasons.append(reason)


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The files of the archive in its order, one at a time: unpacked it has 460 MB."""
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError("reading a .zst trace needs zstandard; install the extra `data`") from error
    try:
        with (
            path.open("rb") as packed,
            zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(packed) as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield member.name, file.read()
    except (zstandard.ZstdError, tarfile.TarError) as error:
        raise ConfigError(f"{path}: not the published archive: {error}") from None


def _us(seconds: Any) -> int:
    return int(number(seconds, "t") * 1e6)


def _number(model: str, tool_tokens: int, system_tokens: int) -> int:
    """Where the block ids of this system prompt begin, beside SHARED_BIT; 2^14 blocks are a million tokens."""
    return crc32(f"{model}/{tool_tokens}/{system_tokens}".encode()) << 14
