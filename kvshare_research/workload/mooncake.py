"""Mooncake's published traces (FAST'25): arrival, lengths, and a chained id for each block of 512 tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np

from .trace import (
    BadLine,
    Chained,
    InOrder,
    Reading,
    TraceRow,
    blocks_needed,
    id_list,
    json_object,
    read_rows,
    text_lines,
    whole,
)
from .trace import number as number_of
from .trace_requests import TraceWorkload

UNIT_TOKENS = 512


@dataclass(slots=True)
class MooncakeLines:
    """Line by line; remembers what earlier lines said of time and of ids."""

    unit_tokens: int = UNIT_TOKENS
    space: str = ""
    _order: InOrder = field(default_factory=InOrder)
    _chained: Chained = field(default_factory=Chained)

    def row(self, line: str) -> TraceRow:
        """The row of a line, or BadLine. A request without output is refused: it has no first token."""
        found = json_object(line, ("timestamp", "input_length", "output_length", "hash_ids"))
        time_ms = number_of(found["timestamp"], "timestamp")
        input_tokens = whole(found["input_length"], "input_length", 1)
        output_tokens = whole(found["output_length"], "output_length", 1)
        ids = id_list(found["hash_ids"], "hash_ids")
        blocks_needed(ids, "hash_ids", input_tokens, self.unit_tokens)
        if len(set(ids)) < len(ids):
            raise BadLine("`hash_ids` has an id twice: ids of a chain are different")
        self._order.check(time_ms, "timestamp")
        self._chained.check(ids, "hash_ids")
        self._order.latest = time_ms
        return TraceRow(
            arrival_us=round(time_ms * 1000),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            ids=np.array(ids, np.int64),
            unit_tokens=self.unit_tokens,
            space=self.space,
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeTrace(TraceWorkload):
    """`file` below `<data_root>/mooncake`. The trace has neither sessions nor tenants: inferred, and composed."""

    file: str = "conversation_trace.jsonl"
    unit_tokens: int = UNIT_TOKENS

    @property
    def block_tokens(self) -> int:
        return self.unit_tokens

    def public_tokens(self, row: TraceRow) -> int:
        """The first block: all 12,031 conversations begin with it."""
        return self.unit_tokens

    def rows(self, reading: Reading) -> Iterator[TraceRow]:
        """The rows of the file, streaming; `reading` counts what was not one."""
        path = self.path("mooncake", self.file)
        parser = MooncakeLines(self.unit_tokens, space=f"mooncake/{Path(self.file).name}")
        return read_rows(text_lines(path), str(path), parser.row, self.on_error, reading)
