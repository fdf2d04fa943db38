"""The runs of a match in one array, read as rows of `Run`: what a fast index answers with and a quote reads whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final, overload

import numpy as np

from .nouns import Column, Run


@final
@dataclass(frozen=True, slots=True, eq=False)
class RunTable(Sequence[Run]):
    """`cells` is int64 [run][node, tier, block_count], `longest` the most blocks of any run (0 without one); equal to
    any sequence of the same runs."""

    cells: Column
    longest: int

    def __len__(self) -> int:
        return len(self.cells)

    @overload
    def __getitem__(self, at: int) -> Run: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Run, ...]: ...
    def __getitem__(self, at: int | slice) -> Run | tuple[Run, ...]:
        if isinstance(at, slice):
            return tuple(map(Run._make, self.cells[at].tolist()))
        return Run._make(self.cells[at].tolist())

    def __iter__(self) -> Iterator[Run]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def cells_of(runs: Sequence[Run]) -> Column:
    """`runs` as cells of a `RunTable`; the same memory when they already are."""
    if isinstance(runs, RunTable):
        return runs.cells
    return np.array(runs, np.int64).reshape(-1, 3)


def longest_blocks(runs: Sequence[Run]) -> int:
    """Blocks of the longest of `runs`, 0 without any."""
    if isinstance(runs, RunTable):
        return runs.longest
    return max((run.block_count for run in runs), default=0)
