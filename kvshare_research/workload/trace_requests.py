"""From rows of a trace to requests: content from ids, and tenants, scopes and regions where the trace has none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar
from zlib import crc32

import numpy as np

from kvshare_research.core.errors import ConfigError, did_you_mean
from kvshare_research.core.nouns import Request, Segment
from kvshare_research.core.rights import EVERYBODY, TENANT, Scope

from .base import PromptItem, Tokens, Workload, WorkloadInput
from .trace import OnError, Reading, TraceRow

_OWN = 1 << 31  # marks tokens that no other request has


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWorkload(Workload, ABC):
    """A public trace below `data_root`, with its own arrival times. Nothing of it is copied.

    Tokens are made from ids, so they are right as to what equals what and mean nothing else: it is for the simulator.
    A session (inferred from ids where the trace has none) has one tenant of the party table and one ingress node, both
    drawn from its name: sharing across tenants is composed, not measured. `speed` 2 replays in half the time.
    """

    timed: ClassVar[bool] = True
    content_known: ClassVar[bool] = True  # False: nothing is known of what prompts have in common

    data_root: str | None
    on_error: OnError = "fail"
    request_count: int | None = None
    speed: float = 1.0

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "skip"):
            raise ConfigError(f"`on_error` is `{self.on_error}`, expected `fail` or `skip`")
        if self.request_count is not None and self.request_count < 1:
            raise ConfigError(f"`request_count` is `{self.request_count}`, expected at least 1 or null for all")
        if not 0 < self.speed < float("inf"):
            raise ConfigError(f"`speed` is `{self.speed}`, expected a number above 0")

    @abstractmethod
    def rows(self, reading: Reading) -> Iterator[TraceRow]:
        """The rows of the trace in the order of their arrival; `reading` counts what was not one."""

    def public_tokens(self, row: TraceRow) -> int:
        """How long the part of the prompt is that belongs to the service and not to a tenant."""
        return 0

    def lineage(self, row: TraceRow) -> str:
        """What stays with one tenant and one region: client, session, or the first id that is not the service's."""
        if row.client or row.session:
            return f"{row.client}/{row.session}"
        skipped = self.public_tokens(row)
        for content, tokens in row.stretches():
            if skipped < tokens:
                return str(content)
            skipped -= tokens
        return f"{row.arrival_us}/{row.input_tokens}/{row.output_tokens}"

    @property
    def block_tokens(self) -> int | None:
        """The block that the trace's ids name; None where any will do."""
        return None

    def path(self, *parts: str) -> Path:
        """A file below the data root; ConfigError if there is none."""
        if self.data_root is None:
            raise ConfigError("this workload reads a public trace; set `data_root` or KVSHARE_DATA to its folder")
        path = Path(self.data_root).joinpath(*parts)
        if path.parent.is_dir() and not path.exists():
            there = [found.name for found in path.parent.iterdir()]
            raise ConfigError(f"no trace at {path}{did_you_mean(path.name, there)}")
        if not path.exists():
            above = Path(self.data_root).resolve().parent
            hint = f"; did you mean `{above}`?" if above.joinpath(*parts).exists() else ""
            raise ConfigError(f"no trace at {path}; set `data_root` to the folder that holds `{'/'.join(parts)}`{hint}")
        return path

    def stream(self, given: WorkloadInput, reading: Reading | None = None) -> Iterator[PromptItem]:
        """The prompts with their arrival times, one at a time: a whole trace never lies in memory."""
        counts = Reading() if reading is None else reading
        spaces: dict[str, int] = {}
        for index, row in enumerate(islice(self.rows(counts), self.request_count)):
            space = spaces.setdefault(row.space, len(spaces))
            yield self._item(row, index, space, given)

    def make(self, given: WorkloadInput) -> list[PromptItem]:
        return list(self.stream(given))

    def _item(self, row: TraceRow, index: int, space: int, given: WorkloadInput) -> PromptItem:
        draw = crc32(f"{given.seed}/{self.lineage(row)}".encode())
        tenant_id = 1 + draw % len(given.directory.tenants)
        public = min(self.public_tokens(row), row.input_tokens)
        parts = ((EVERYBODY, public), (Scope(TENANT, tenant_id), row.input_tokens - public))
        scope_id = given.directory.scope_id
        segments = tuple([Segment(scope_id=scope_id(scope), token_count=tokens) for scope, tokens in parts if tokens])
        request = Request(
            request_id=index,
            tenant_id=tenant_id,
            user_id=0,
            segments=segments,
            output_tokens_max=max(1, row.output_tokens),
            ingress=crc32(f"{draw}".encode()) % given.node_count,
            arrival_us=int(row.arrival_us / self.speed),
            application="trace",
        )
        return PromptItem(
            request=request, tokens=content(row, index, space), application=request.application,
            layers=("system", "user")[-len(segments) :], shared_tokens=0, tenant_shared_tokens=0,
        )  # fmt: skip


def content(row: TraceRow, index: int, space: int) -> Tokens:
    """Tokens that are equal in two prompts as far as their ids say so, and nowhere else."""
    named = len(row.ids) * row.unit_tokens if row.lengths is None else 0
    tokens = np.empty(max(row.input_tokens, named), np.uint32)  # the last stretch may end beyond the prompt
    known = _by_unit(row, space, tokens[:named]) if row.lengths is None else _by_length(row, space, tokens)
    own = tokens[known:]
    own[0::2], own[1::2] = index, _OWN | space
    return tokens[: row.input_tokens]


def _by_unit(row: TraceRow, space: int, tokens: Tokens) -> int:
    """The stretches of equal length, in one go; returns how many tokens they cover."""
    blocks = tokens.reshape(len(row.ids), row.unit_tokens)
    names = row.ids.astype("<i8", copy=False).view("<u4").reshape(-1, 2)
    blocks[:, 0::3], blocks[:, 1::3], blocks[:, 2::3] = names[:, :1], names[:, 1:], space
    return len(tokens)


def _by_length(row: TraceRow, space: int, tokens: Tokens) -> int:
    at = 0
    for name, length in row.stretches():
        stretch = tokens[at : at + length]
        stretch[0::3], stretch[1::3], stretch[2::3] = name & 0xFFFFFFFF, name >> 32, space
        at += length
    return min(at, row.input_tokens)
