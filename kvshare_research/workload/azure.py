"""Azure's LLM inference traces of 2023 (Splitwise, ISCA'24): arrivals and lengths, nothing on content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal, final

import numpy as np

from kvshare_research.core.errors import ConfigError

from .trace import BadLine, InOrder, Reading, TraceRow, read_rows, text_lines
from .trace_requests import TraceWorkload

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
NO_IDS = np.empty(0, np.int64)


@dataclass(slots=True)
class AzureLines:
    """Line by line; times are counted from the first row."""

    _first_us: int | None = None
    _order: InOrder = field(default_factory=InOrder)

    def row(self, line: str) -> TraceRow:
        """The row of a line, or BadLine."""
        cells = line.strip().split(",")
        if len(cells) != 3:
            raise BadLine(f"{len(cells)} cells, expected 3: {HEADER}")
        at_us = _time_us(cells[0])
        first_us = at_us if self._first_us is None else self._first_us
        prompt, output = _count(cells[1], "ContextTokens"), _count(cells[2], "GeneratedTokens")
        self._order.check(at_us - first_us, "TIMESTAMP")
        self._first_us, self._order.latest = first_us, at_us - first_us
        return TraceRow(arrival_us=at_us - first_us, input_tokens=prompt, output_tokens=output, ids=NO_IDS)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AzureTrace(TraceWorkload):
    """One of the files below `<data_root>/azure_llm_2023`. No content is known: every prompt is its own."""

    content_known: ClassVar[bool] = False

    part: Literal["code", "conv"] = "conv"

    def rows(self, reading: Reading) -> Iterator[TraceRow]:
        """The rows of the file, streaming."""
        path = self.path("azure_llm_2023", f"AzureLLMInferenceTrace_{self.part}.csv")
        lines = text_lines(path)
        _, header = next(lines)
        if header.strip() != HEADER:
            raise ConfigError(f"{path}:1: the header is `{header.strip()[:60]}`, expected `{HEADER}`")
        yield from read_rows(lines, str(path), AzureLines().row, self.on_error, reading)


def _time_us(text: str) -> int:
    whole_text, _, fraction = text.partition(".")
    try:
        whole = datetime.strptime(whole_text, "%Y-%m-%d %H:%M:%S")
    except ValueError:
        raise BadLine(f"`TIMESTAMP` is `{text}`, expected YYYY-MM-DD hh:mm:ss.fffffff") from None
    if fraction and not (fraction.isascii() and fraction.isdigit()):
        raise BadLine(f"`TIMESTAMP` is `{text}`, expected digits after the point")
    return int((whole - datetime(1970, 1, 1)).total_seconds()) * 1_000_000 + int((fraction + "000000")[:6])


def _count(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise BadLine(f"`{name}` is `{text}`, expected a whole number of at least 1")
    return int(text)
