"""The runs of a match as columns, read as rows of `Run`: what a fast index answers with and a quote reads whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final, overload

import numpy as np

from .nouns import Column, Run


@final
@dataclass(frozen=True, slots=True, eq=False)
class RunTable(Sequence[Run]):
    """`columns` is int64 [node, tier, block_count][run]; equal to any sequence of the same runs."""

    columns: Column

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    @overload
    def __getitem__(self, at: int) -> Run: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Run, ...]: ...
    def __getitem__(self, at: int | slice) -> Run | tuple[Run, ...]:
        if isinstance(at, slice):
            return tuple(map(Run._make, self.columns[:, at].T.tolist()))
        return Run._make(self.columns[:, at].tolist())

    def __iter__(self) -> Iterator[Run]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def columns_of(runs: Sequence[Run]) -> Column:
    """`runs` as columns of a `RunTable`; the same memory when they already are."""
    if isinstance(runs, RunTable):
        return runs.columns
    return np.ascontiguousarray(np.array(runs, np.int64).reshape(-1, 3).T)


def longest_blocks(runs: Sequence[Run]) -> int:
    """Blocks of the longest of `runs`, 0 without any."""
    if isinstance(runs, RunTable):
        return int(runs.columns[2].max(initial=0))
    return max((run.block_count for run in runs), default=0)
