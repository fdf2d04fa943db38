"""One schema for public traces, and strict reading of them: a line is a row, or there is a reason why it is none."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvshare_research.core.errors import ConfigError, did_you_mean

Ids = NDArray[np.int64]
OnError = Literal["fail", "skip"]
ID_MAX = (1 << 63) - 1
REASONS_SHOWN = 20


class TraceRow(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """One request of a trace.

    `ids` names the content of successive stretches of the prompt; equal ids of one `space` are equal text, and ids of
    different spaces never meet. Stretch i has `lengths[i]` tokens, or `unit_tokens` each but for the last. Without ids
    nothing is known to be shared. Stretches of `unit_tokens` are the blocks of the trace.
    """

    arrival_us: int
    input_tokens: int
    output_tokens: int
    ids: Ids
    unit_tokens: int = 0
    lengths: Ids | None = None
    space: str = ""
    session: str = ""  # "" where the trace does not tell
    client: str = ""  # a tenant, where the trace has them

    def stretches(self) -> Iterator[tuple[int, int]]:
        """(id, tokens) of each stretch; they add up to at most the prompt, the rest is this request's own."""
        if self.lengths is not None:
            yield from zip(self.ids.tolist(), self.lengths.tolist(), strict=True)
            return
        left, unit_tokens = self.input_tokens, self.unit_tokens
        for content in self.ids.tolist():
            tokens = min(left, unit_tokens)
            yield content, tokens
            left -= tokens


class BadLine(ValueError):
    """Why a line is no row, in words that go after `file:line: `."""


@dataclass(slots=True)
class Reading:
    """What became of the lines of a trace: rows, blank lines, and refused lines with the first reasons."""

    rows: int = 0
    blank: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line) of a text file, a byte-order mark at its start left out; ConfigError if it cannot be a trace."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            empty = True
            for number, line in enumerate(file, 1):
                if empty and line.strip():
                    empty = False
                    _refuse_other_files(path, line)
                yield number, line
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the trace: {error.strerror}") from None
    if empty:
        raise ConfigError(f"{path}: the trace is empty")


def read_rows(
    lines: Iterable[tuple[int, str]], source: str, parse: Callable[[str], TraceRow], on_error: OnError, reading: Reading
) -> Iterator[TraceRow]:
    """The rows of the lines, in their order; a bad line raises ConfigError or is counted in `reading` and left out."""
    for number, line in lines:
        if not line.strip():
            reading.blank += 1
            continue
        try:
            row = parse(line)
        except BadLine as error:
            if on_error == "fail":
                raise ConfigError(f"{source}:{number}: {error}") from None
            reading.refused += 1
            reading.kinds[str(error).split(",")[0].split(" is ")[0]] += 1
            if len(reading.reasons) < REASONS_SHOWN:
                reading.reasons.append(f"{source}:{number}: {error}")
            continue
        reading.rows += 1
        yield row
    if not reading.rows:
        raise ConfigError(f"{source}: no line of the trace is a request; {reading.refused} were refused")


def json_object(line: str, required: Iterable[str], optional: Iterable[str] = ()) -> Mapping[str, Any]:
    """The line as an object with exactly these keys; BadLine otherwise."""
    try:
        found = _JSON.decode(line)
    except json.JSONDecodeError as error:
        if line.startswith("\ufeff"):
            raise BadLine("a byte-order mark, expected one at most at the start of the file") from None
        raise BadLine(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(found, dict):
        raise BadLine(f"the line is a {type(found).__name__}, expected an object")
    known = (*required, *optional)
    for key in found:
        if key not in known:
            raise BadLine(f"unknown key `{key}`{did_you_mean(key, known)}")
    for key in required:
        if key not in found:
            raise BadLine(f"`{key}` is missing")
    return found


def whole(value: Any, name: str, least: int = 0) -> int:
    """The value as a whole number, not less than `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadLine(f"`{name}` is `{value!r}`, expected a whole number")
    if not least <= value <= ID_MAX:
        raise BadLine(f"`{name}` is `{value}`, expected at least {least}")
    return value


def number(value: Any, name: str) -> float:
    """The value as a finite number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadLine(f"`{name}` is `{value!r}`, expected a number")
    if not math.isfinite(value) or value < 0:
        raise BadLine(f"`{name}` is `{value}`, expected 0 or more")
    return value


def id_list(value: Any, name: str) -> list[int]:
    """The value as a list of ids of at most 63 bits, none cut short."""
    if not isinstance(value, list):
        raise BadLine(f"`{name}` is `{value!r}`, expected a list of ids")
    if set(map(type, value)) == {int} and min(value) >= 0 and max(value) <= ID_MAX:
        return value
    return [whole(content, f"{name}[{i}]") for i, content in enumerate(value)]


@dataclass(slots=True)
class InOrder:
    """Times of a trace only rise; who accepts a line sets `latest`.

    A line is judged by those before it alone, as it is read: of two that contradict each other the later is refused.
    So after one wrong time far ahead all others are, each naming it; which of them is wrong no single pass can tell.
    """

    latest: float = 0.0

    def check(self, time: float, name: str) -> None:
        """BadLine if `time` lies before one seen earlier."""
        if time < self.latest:
            raise BadLine(f"`{name}` is {time}, before {self.latest} of an earlier line")


@dataclass(slots=True)
class Chained:
    """Ids that stand for a block and all before it: each has one parent, so it has one position."""

    parents: dict[int, int] = field(default_factory=dict)

    def check(self, ids: list[int], name: str) -> None:
        """BadLine if the ids contradict themselves or earlier lines; then nothing is remembered of them."""
        before = [-1, *ids]
        before.pop()
        found = list(map(self.parents.get, ids))
        first = found.index(None) if None in found else len(ids)  # that is new
        new = dict(zip(ids[first:], before[first:], strict=True))
        if found[:first] == before[:first] and found.count(None) == len(new) == len(ids) - first:
            self.parents.update(new)
            return
        places = dict(zip(reversed(ids), reversed(before), strict=True))  # the first of each
        places |= {content: self.parents[content] for content in ids if content in self.parents}
        content = next(content for content, place in zip(ids, before, strict=True) if places[content] != place)
        where = "at the start" if places[content] == -1 else f"after id {places[content]}"
        raise BadLine(f"`{name}` has id {content} elsewhere than {where}, where it stood: ids are not chained")


def blocks_needed(ids: list[int], name: str, input_tokens: int, unit_tokens: int, *, whole_only: bool = False) -> None:
    """BadLine unless there is an id for each block of the prompt; `whole_only` counts full blocks."""
    needed = input_tokens // unit_tokens if whole_only else -(-input_tokens // unit_tokens)
    if len(ids) != needed:
        raise BadLine(f"`{name}` has {len(ids)} ids, {input_tokens} tokens in blocks of {unit_tokens} need {needed}")


def _no_constant(word: str) -> NoReturn:
    raise BadLine(f"`{word}` is no number in JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)


def _refuse_other_files(path: Path, line: str) -> None:
    if line.lstrip().startswith("<"):
        raise ConfigError(f"{path}: this is a web page, not a trace; download it again, following redirects")
    if line.startswith("version https://git-lfs"):
        raise ConfigError(f"{path}: this is a Git LFS pointer, not the trace; fetch the file with `git lfs pull`")
