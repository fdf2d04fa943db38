"""The loop behind a quote: every executor, every holder, over the formulas of `core/costing.py`, `core/splitting.py`.

Ordinary Python on int64 arrays. With Numba installed it is compiled, together with those very functions, and gives
the same integers some hundred times faster; `fill_rows` without it is the readable reference.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvshare_research.core import costing, splitting
from kvshare_research.core.costing import (
    fetch_ps,
    overlap_us,
    paced,
    prefill_ps,
    priced_us,
    setup_ps,
    ttft_us,
    up_to_us,
)
from kvshare_research.core.loads import PACE_PERMILLE, QUEUED_WORK_US
from kvshare_research.core.nouns import NO_NODE, Action
from kvshare_research.core.splitting import (
    capped_ps,
    delivered_blocks,
    fill,
    finish_ps,
    front_of,
    meet_ps,
    next_finish_ps,
)

from . import floors
from . import sheet as sheets
from .floors import beats, depths_of, keep_best, likeliest, longest_of, may_serve, price_floor_us, row_price_us
from .sheet import (
    DEPTH,
    INFLIGHT_BYTES,
    READ_PS_PER_BYTE,
    ROUTE_US,
    Given,
    Ints,
    Sheet,
    age_us,
    believed,
    block_ps,
    line_up,
    merging_us,
    pull_us,
    put_row,
    rate_high_ps,
    rtt_high_us,
    seat,
)

ROWS_PER_EXECUTOR = 6  # RECOMPUTE, RESIDENT or ROUTE, PULL from the best and from the deepest, MULTI_PULL, SPLIT

# Plain ints for compiled code, which knows no enumeration.
RECOMPUTE, RESIDENT, ROUTE = int(Action.RECOMPUTE), int(Action.RESIDENT), int(Action.ROUTE)
PULL, MULTI_PULL, SPLIT = int(Action.PULL), int(Action.MULTI_PULL), int(Action.SPLIT)
PULL_ROWS = 5
SOURCE, SETUP_PS, BLOCK_PS, FETCHED_PS, TTFT_US = range(PULL_ROWS)


def may(sheet: Sheet, action: int) -> bool:
    """Whether `action` may be quoted."""
    return (sheet.job.actions >> action) & 1 == 1


def deal(sheet: Sheet, sources: Ints, able: Ints, counts: Ints, resident: int, target: int, pieces: Ints) -> None:
    """Blocks [resident, target) are dealt: row 3 of `sources` counts per source, `pieces` says which.

    `sources` has the rows node, setup_ps, per_block_ps, blocks so far; `able` has room for three of them, `counts`
    for one. The deepest stretch comes first, since the fewest sources reach it; each is water-filled over the
    sources that reach it, on top of what they already carry.
    """
    depth = sheet.nodes[DEPTH]
    source_count = sources.shape[1]
    piece = 0
    end = target
    while end > resident:
        start = resident
        able_count = 0
        for i in range(source_count):
            if depth[sources[0, i]] >= end:
                able[0, able_count] = i
                able[1, able_count] = sources[1, i] + sources[3, i] * sources[2, i]
                able[2, able_count] = sources[2, i]
                able_count += 1
            elif depth[sources[0, i]] > start:
                start = depth[sources[0, i]]
        fill(end - start, able[1, :able_count], able[2, :able_count], counts)
        for k in range(able_count):
            if counts[k] > 0:
                i = able[0, k]
                sources[3, i] += counts[k]
                pieces[piece, 0] = sources[0, i]
                pieces[piece, 1] = end - counts[k]
                pieces[piece, 2] = end
                end -= counts[k]
                piece += 1


class Room(NamedTuple):
    """Scratch for one executor, kept for the next. Given from outside: compiled code that allocates nothing need not
    count references, which would be half of its time."""

    wide: Ints  # [PULL_ROWS + 3, node]: pulls from holders of more than the executor has; holders, their ends; depths
    narrow: Ints  # [9, sources_max]: four rows of sources, three of those able, their counts, the best pulls
    pieces: Ints  # [piece, (source, start, end)]


def room_for(node_count: int, sources_max: int) -> Room:
    """Enough for every executor."""
    return Room(
        np.empty((PULL_ROWS + 3, node_count), np.int64),
        np.empty((9, sources_max), np.int64),
        np.empty((sources_max * sources_max, 3), np.int64),
    )


def put_multi(sheet: Sheet, row: int, executor: int, resident: int, pulls: Ints, ranked: Ints, room: Room) -> int:
    """Row `row` is the best MULTI_PULL of `executor` from two or more sources; returns 1, or 0 if there is none.

    The sources are `ranked` among `pulls`. Every depth that one of them reaches is tried as
    the end of the pulled part, the deepest first, unless what is left to compute alone takes longer than the best.
    """
    job, count = sheet.job, len(ranked)
    sources, able, counts = room.narrow[:4, :count], room.narrow[4:7, :count], room.narrow[7, :count]
    pieces = room.pieces
    target = 0
    for i in range(count):
        source = pulls[SOURCE, ranked[i]]
        sources[0, i] = source
        sources[1, i] = pulls[SETUP_PS, ranked[i]]
        sources[2, i] = pulls[BLOCK_PS, ranked[i]]
        target = max(target, sheet.nodes[DEPTH, source])
    best_ps = -1
    best_target = 0
    best_fetched_ps = 0
    while target > resident:
        rest_ps = prefill_ps(sheet.coefficients, job.token_count - target * job.block_tokens, target * job.block_tokens)
        rest_ps += (target - resident) * job.block_bytes * job.merge_ps_per_byte
        if best_ps < 0 or rest_ps < best_ps:
            for i in range(count):
                sources[3, i] = 0
            for i in range(len(pieces)):
                pieces[i, 0], pieces[i, 1], pieces[i, 2] = 0, 0, 0
            deal(sheet, sources, able, counts, resident, target, pieces)
            used, fetched_ps = dealt_ps(sheet, sources, target - resident)
            if used > 1 and (best_ps < 0 or fetched_ps + rest_ps < best_ps):
                best_ps = fetched_ps + rest_ps
                best_target = target
                best_fetched_ps = fetched_ps
                for i in range(len(pieces)):
                    for k in range(3):
                        sheet.pieces[row, i, k] = pieces[i, k]
        below = 0
        for i in range(count):
            depth = sheet.nodes[DEPTH, sources[0, i]]
            if below < depth < target:
                below = depth
        target = below
    if best_ps < 0:
        return 0
    put_row(sheet, row, MULTI_PULL, executor, NO_NODE, resident, 0, best_target - resident, best_fetched_ps)
    return 1


def dealt_ps(sheet: Sheet, sources: Ints, pulled: int) -> tuple[int, int]:
    """How many sources carry blocks, and when the last of all `pulled` blocks has arrived."""
    used = 0
    last_ps = 0
    first_ps = 0
    for i in range(sources.shape[1]):
        if sources[3, i] > 0:
            first_ps = sources[1, i] if used == 0 else min(first_ps, sources[1, i])
            last_ps = max(last_ps, finish_ps(sources[1, i], sources[2, i], sources[3, i]))
            used += 1
    return used, capped_ps(last_ps, first_ps, pulled, sheet.job.block_bytes * sheet.job.receiver_ps_per_byte)


def put_split(sheet: Sheet, row: int, executor: int, resident: int, pull: Ints) -> int:
    """Row `row` is the SPLIT of `executor` with the source of a `pull`; returns 1, or 0 if fetching or computing all
    is best."""
    block_tokens = sheet.job.block_tokens
    source, start_ps, rate = pull[SOURCE], pull[SETUP_PS], pull[BLOCK_PS]
    pulled = sheet.nodes[DEPTH, source] - resident
    front = front_of(sheet.coefficients, resident * block_tokens, block_tokens, pulled, start_ps, rate)
    if not 0 < front < pulled:
        return 0
    fetched_ps = fetch_ps(start_ps, pulled - front, rate)
    put_row(sheet, row, SPLIT, executor, source, resident, front, pulled - front, fetched_ps)
    return 1


def rank(pulls: Ints, column: int, ranked: Ints) -> None:
    """`ranked`, which names the quickest of the columns before `column`, takes it in; the lower node on a tie."""
    source, time_us = pulls[SOURCE, column], pulls[TTFT_US, column]
    k = min(column, len(ranked))
    while k > 0:
        other = ranked[k - 1]
        ahead = pulls[TTFT_US, other] - time_us
        if ahead < 0 or (ahead == 0 and pulls[SOURCE, other] < source):
            break
        if k < len(ranked):
            ranked[k] = other
        k -= 1
    if k < len(ranked):
        ranked[k] = column


def least_pull_us(sheet: Sheet, executor: int, source: int, resident: int) -> int:
    """No pull from a node as deep as `source` takes less: as over the best link that any two nodes have."""
    rate_ps = sheet.links.rate_least_ps
    start_ps = setup_ps(sheet.links.rtt_least_us, 0, rate_ps)
    pulled = sheet.nodes[DEPTH, source] - resident
    return pull_us(sheet, executor, source, resident, fetch_ps(start_ps, pulled, block_ps(sheet.job, rate_ps)))


def put_pull(sheet: Sheet, executor: int, source: int, resident: int, pulls: Ints, column: int) -> None:
    """`column` of `pulls` is pulling all that `source` has beyond `resident`."""
    links, pulled = sheet.links, sheet.nodes[DEPTH, source] - resident
    rate_ps, ahead_bytes = rate_high_ps(links, source, executor), links.links[source, executor, INFLIGHT_BYTES]
    start_ps = setup_ps(rtt_high_us(links, source, executor), ahead_bytes, rate_ps)
    per_block_ps = block_ps(sheet.job, rate_ps + sheet.nodes[READ_PS_PER_BYTE, source])
    fetched_ps = fetch_ps(start_ps, pulled, per_block_ps)
    pulls[SOURCE, column] = source
    pulls[SETUP_PS, column] = start_ps
    pulls[BLOCK_PS, column] = per_block_ps
    pulls[FETCHED_PS, column] = fetched_ps
    pulls[TTFT_US, column] = pull_us(sheet, executor, source, resident, fetched_ps)


def quote_pulls(sheet: Sheet, executor: int, resident: int, pulls: Ints, ranked: Ints) -> tuple[int, int]:
    """Columns of `pulls` for holders of more than `executor` has, the quickest in `ranked`; returns how many columns,
    and that which brings most blocks (the quickest of equals, then the lower node).

    A holder is left out if by `least_pull_us` it could not rank. Exact, since the deepest come first: those left out of
    them are behind others as deep. So of a thousand holders, few are priced.
    """
    depth, holders = sheet.nodes[DEPTH], sheet.holders
    count, deepest, at = 0, 0, 0
    blocks, least_us = 0, 0
    while at < len(holders):
        source = holders[at]
        if depth[source] <= resident:
            at = sheet.ends[at]
            continue
        if count >= len(ranked) and sheet.job.every_source == 0:
            if depth[source] != blocks:
                blocks, least_us = depth[source], least_pull_us(sheet, executor, source, resident)
            worst = ranked[len(ranked) - 1]
            behind = least_us - pulls[TTFT_US, worst]
            if behind > 0 or (behind == 0 and source > pulls[SOURCE, worst]):
                at = sheet.ends[at]
                continue
        put_pull(sheet, executor, source, resident, pulls, count)
        rank(pulls, count, ranked)
        gain = depth[source] - depth[pulls[SOURCE, deepest]]
        if gain > 0 or (gain == 0 and pulls[TTFT_US, count] < pulls[TTFT_US, deepest]):
            deepest = count
        count += 1
        at += 1
    return count, deepest


def put_pulls(sheet: Sheet, row: int, executor: int, resident: int, pulls: Ints, best: int, deepest: int) -> int:
    """From row `row` on, the PULL rows that are quoted, by source; returns how many."""
    first = row
    low, high = (deepest, best) if pulls[SOURCE, deepest] < pulls[SOURCE, best] else (best, deepest)
    for i in range(pulls.shape[1]):
        column = i if sheet.job.every_source == 1 else (low, high)[min(i, 1)]
        source = pulls[SOURCE, column]
        pulled = sheet.nodes[DEPTH, source] - resident
        put_row(sheet, row, PULL, executor, source, resident, 0, pulled, pulls[FETCHED_PS, column])
        row += 1
        if sheet.job.every_source == 0 and column == high:
            break
    return row - first


def put_ways_to_fetch(sheet: Sheet, row: int, executor: int, resident: int, room: Room) -> int:
    """From row `row` on, every allowed way that moves bytes to `executor`; returns how many rows."""
    pull_count, deepest = quote_pulls(sheet, executor, resident, room.wide[:PULL_ROWS], room.narrow[8])
    if pull_count == 0:
        return 0
    pulls, ranked = room.wide[:PULL_ROWS, :pull_count], room.narrow[8, :pull_count]
    best = ranked[0]
    first = row
    if may(sheet, PULL):
        row += put_pulls(sheet, row, executor, resident, pulls, best, deepest)
    if may(sheet, MULTI_PULL) and len(ranked) > 1:
        row += put_multi(sheet, row, executor, resident, pulls, ranked, room)
    if may(sheet, SPLIT):
        row += put_split(sheet, row, executor, resident, pulls[:, best])
    return row - first


def put_ways(sheet: Sheet, row: int, executor: int, room: Room) -> int:
    """From row `row` on, every allowed way of serving on `executor`; returns how many rows."""
    first = row
    put_row(sheet, row, RECOMPUTE, executor, NO_NODE, 0, 0, 0, 0)
    row += 1
    resident = sheet.nodes[DEPTH, executor]
    home = RESIDENT if executor == sheet.job.ingress else ROUTE
    if resident > 0 and may(sheet, home):
        put_row(sheet, row, home, executor, NO_NODE, resident, 0, 0, 0)
        row += 1
    if may(sheet, PULL) or may(sheet, MULTI_PULL) or may(sheet, SPLIT):
        row += put_ways_to_fetch(sheet, row, executor, resident, room)
    return row - first


def fill_rows(given: Given, out: Ints, pieces: Ints, room: Room) -> tuple[int, int]:
    """All rows are written to `out`, executor by executor at its own pace, and their `pieces`; returns how many,
    and the most blocks that anybody holds.

    Where only the row of least price is wanted, that row alone: an executor is passed over if by `price_floor_us`
    it cannot have it, and what any other has is compared with the best so far. Exact: the order is total.
    """
    ends = room.wide[PULL_ROWS + 1]
    holders = room.wide[PULL_ROWS, : seat(given, room.wide[PULL_ROWS], ends)]
    nodes, job = given.nodes, given.job
    sheet = Sheet(out, pieces, nodes, holders, ends, given.links, given.coefficients, job)
    only_best = job.least_at_permille >= 0
    first = likeliest(given, sheet) if only_best else NO_NODE
    depths = room.wide[PULL_ROWS + 2, : depths_of(sheet, room.wide[PULL_ROWS + 2])]
    row = 0
    best_us = 0
    pace_permille = -1
    for turn in range(-1, nodes.shape[1]):
        executor = first if turn < 0 else turn
        if turn == first or not may_serve(given, executor):
            continue
        if only_best and row > 0 and nodes[QUEUED_WORK_US, executor] + nodes[ROUTE_US, executor] > best_us:
            continue
        if nodes[PACE_PERMILLE, executor] != pace_permille:
            pace_permille = nodes[PACE_PERMILLE, executor]
            own = paced(given.coefficients, pace_permille)
            sheet = Sheet(out, pieces, nodes, holders, ends, given.links, own, job)
        if only_best and row > 0 and price_floor_us(sheet, depths, executor) > best_us:
            continue
        end = row + put_ways(sheet, row, executor, room)
        row = keep_best(sheet, row, end) if only_best else end
        best_us = row_price_us(sheet, 0)
    return row, longest_of(depths)


@cache
def compiled() -> Callable[[Given, Ints, Ints, Room], tuple[int, int]]:
    """`fill_rows`, compiled with Numba when that is installed (kept on disk between runs), else as it stands."""
    if importlib.util.find_spec("numba") is None:
        return fill_rows
    import numba
    from numba.extending import register_jitable

    formulas = (paced, prefill_ps, up_to_us, setup_ps, fetch_ps, overlap_us, ttft_us, priced_us)
    splits = (finish_ps, next_finish_ps, delivered_blocks, fill, capped_ps, meet_ps, front_of)
    prices = (believed, age_us, rtt_high_us, rate_high_ps, line_up, seat, block_ps, merging_us, pull_us, put_row)
    best = (may_serve, depths_of, longest_of, likeliest, price_floor_us, row_price_us, beats, keep_best)
    here = (
        may,
        deal,
        dealt_ps,
        put_multi,
        put_split,
        rank,
        least_pull_us,
        put_pull,
        quote_pulls,
        put_pulls,
        put_ways_to_fetch,
        put_ways,
    )
    for function in (*formulas, *splits, *prices, *best, *here, fill_rows):
        register_jitable(error_model="numpy", forceinline=True)(function)
    files = (costing.__file__, splitting.__file__, sheets.__file__, floors.__file__, __file__)
    sources = b"".join(Path(file).read_bytes() for file in files)
    fingerprint = hashlib.sha256(sources).hexdigest()

    def fill_all_rows(given: Given, out: Ints, pieces: Ints, room: Room) -> tuple[int, int]:
        _ = fingerprint  # part of the key of the copy on disk, which by itself notices changes of this file only
        return fill_rows(given, out, pieces, room)

    njit: Any = numba.njit
    # `_nrt`: references to arrays are not counted; nothing is allocated in here (it would not compile).
    entry: Callable[[Given, Ints, Ints, Room], tuple[int, int]] = njit(cache=True, error_model="numpy", _nrt=False)(
        fill_all_rows
    )
    return entry
