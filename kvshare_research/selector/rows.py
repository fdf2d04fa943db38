"""What several selectors say with rows of a `QuoteTable`; every answer is free of the order of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.costing import Choice, better
from kvshare_research.core.nouns import Action, Column, QuoteTable

Rows = NDArray[np.intp]
_MASK = (1 << 64) - 1
STAYING = (Action.RECOMPUTE, Action.RESIDENT, Action.ROUTE)  # no bytes move between nodes


def rows_of(table: QuoteTable, *actions: Action, executor: int | None = None) -> Rows:
    """Rows with one of `actions`, on `executor` if given."""
    wanted = table.action == actions[0]
    for action in actions[1:]:
        wanted |= table.action == action
    if executor is not None:
        wanted &= table.executor == executor
    return np.flatnonzero(wanted)


def first_per_executor(table: QuoteTable, rows: Rows, *keys: Column) -> Rows:
    """One row for each executor that has any among `rows`: the one whose keys are least; executors ascend."""
    ordered = rows[np.lexsort([key[rows] for key in (*reversed(keys), table.executor)])]
    executors = table.executor[ordered]
    return ordered[np.flatnonzero(np.r_[True, executors[1:] != executors[:-1]][: len(ordered)])]


def least(rows: Rows, *keys: Column | NDArray[np.float64]) -> int:
    """The row, among `rows` (at least one), whose keys are least; each is a whole column, later ones break ties."""
    for key in keys:
        if len(rows) == 1:
            break
        values = key[rows]
        rows = rows[values == values.min()]
    return int(rows[0])


def cheapest_of(table: QuoteTable, rows: Rows) -> int:
    """The row, among `rows` (at least one), that `core.costing.better` prefers over all others."""
    times = table.ttft_us[rows]
    return _preferred(table, rows[times == times.min()].tolist())


def cheapest(table: QuoteTable, times: Column | None = None) -> int:
    """The row that `core.costing.better` prefers over all others, by the quoted TTFT or by the `times` given."""
    times = table.ttft_us if times is None else times
    return _preferred(table, np.flatnonzero(times == times.min()).tolist())


def _preferred(table: QuoteTable, tied: list[int]) -> int:
    """The row of `tied`, which take the same time, that `better` prefers."""
    best_row = tied[0]
    best = _choice(table, best_row)
    for row in tied[1:]:
        candidate = _choice(table, row)
        if better(best, candidate) is candidate:
            best_row, best = row, candidate
    return int(best_row)


def least_loaded_executor(table: QuoteTable) -> int:
    """The executor with the fewest waiting prompt tokens, then requests, then nearest the client, then the lowest."""
    rows = rows_of(table, Action.RECOMPUTE)
    row = least(rows, table.queued_tokens, table.queued_requests, table.rtt_us, table.executor)
    return int(table.executor[row])


def executors_of(table: QuoteTable) -> list[int]:
    """Every node that may serve, ascending."""
    found: list[int] = np.unique(table.executor).tolist()
    return found


def stays(table: QuoteTable) -> Rows:
    """For each executor, ascending, the row that serves there with what it has."""
    return first_per_executor(table, rows_of(table, *STAYING), -table.resident_blocks, table.action)


def mixed(*parts: int) -> int:
    """A 64-bit number that depends on all of `parts` and looks drawn (SplitMix64); equal in every process."""
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def drawn(table: QuoteTable, salt: int = 0) -> NDArray[np.float64]:
    """A column that breaks ties by chance: it differs per request and executor, in [0, 1)."""
    chance = {executor: mixed(table.draw, executor, salt) / 2**64 for executor in executors_of(table)}
    return np.array([chance[executor] for executor in table.executor.tolist()])


def stay(table: QuoteTable, executor: int) -> int:
    """The row that serves on `executor` with what it has: RESIDENT or ROUTE, else RECOMPUTE."""
    return least(rows_of(table, *STAYING, executor=executor), -table.resident_blocks, table.action)


def deepest_pull(table: QuoteTable, executor: int) -> int | None:
    """The PULL row of `executor` from the holder of the longest run (the quickest of equals), None if there is none."""
    rows = rows_of(table, Action.PULL, executor=executor)
    if len(rows) == 0:
        return None
    return least(rows, -table.pulled_blocks, table.ttft_us, table.source)


def _choice(table: QuoteTable, row: int) -> Choice:
    return Choice(
        int(table.ttft_us[row]),
        int(table.transfer_bytes[row]),
        int(table.action[row]),
        int(table.executor[row]),
        int(table.source[row]),
    )
