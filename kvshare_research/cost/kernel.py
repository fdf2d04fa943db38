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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core import costing, splitting
from kvshare_research.core.costing import (
    PrefillCoefficients,
    fetch_ps,
    overlap_us,
    paced,
    prefill_ps,
    setup_ps,
    ttft_us,
    up_to_us,
)
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

COLUMNS = [
    "action",
    "executor",
    "source",
    "resident_blocks",
    "pulled_blocks",
    "front_blocks",
    "route_us",
    "queue_us",
    "fetch_us",
    "prefill_us",
    "overlap_us",
    "merge_us",
    "ttft_us",
    "uncached_tokens",
    "queued_tokens",
    "queued_requests",
    "rtt_us",
    "transfer_bytes",
]
ROWS_PER_EXECUTOR = 6  # RECOMPUTE, RESIDENT or ROUTE, PULL from the best and from the deepest, MULTI_PULL, SPLIT

# Plain ints for compiled code, which knows no enumeration.
RECOMPUTE, RESIDENT, ROUTE = int(Action.RECOMPUTE), int(Action.RESIDENT), int(Action.ROUTE)
PULL, MULTI_PULL, SPLIT = int(Action.PULL), int(Action.MULTI_PULL), int(Action.SPLIT)

SOURCE, PULLED, TTFT = COLUMNS.index("source"), COLUMNS.index("pulled_blocks"), COLUMNS.index("ttft_us")

# Rows of `nodes` and layers of `links`: arrays and not records, since few arguments compile and call quickest.
NODE_ROWS, LINK_ROWS = 6, 4
DEPTH, READ_PS_PER_BYTE, QUEUED_WORK_US, QUEUED_TOKENS, QUEUED_REQUESTS, PACE_PERMILLE = range(NODE_ROWS)
RTT_US, RTT_HIGH_US, PS_PER_BYTE_HIGH, INFLIGHT_BYTES = range(LINK_ROWS)

Ints = NDArray[np.int64]


class Job(NamedTuple):
    """The numbers of one request and of the policy, all ints."""

    token_count: int
    block_tokens: int
    block_bytes: int
    ingress: int
    actions: int  # bit a is set when action a may be quoted
    every_source: int
    sources_max: int
    merge_ps_per_byte: int
    receiver_ps_per_byte: int


class Sheet(NamedTuple):
    """What a row is made from, and where it goes: `out` in the order of `COLUMNS`, `pieces` of MULTI_PULL rows."""

    out: Ints  # [column, row]
    pieces: Ints  # [executor, piece, (source, start, end)]; an empty piece is none
    coefficients: PrefillCoefficients
    job: Job
    nodes: Ints  # [NODE_ROWS, node]; the depth of a node that may not serve as a source is 0
    links: Ints  # [LINK_ROWS, source, reader]; the diagonals are 0


def put_row(
    sheet: Sheet,
    row: int,
    action: int,
    executor: int,
    source: int,
    resident: int,
    front: int,
    pulled: int,
    fetched_ps: int,
) -> int:
    """Row `row` is written; returns its TTFT in us."""
    job, nodes, out = sheet.job, sheet.nodes, sheet.out
    cached = (resident + front + pulled) * job.block_tokens
    front_us = up_to_us(prefill_ps(sheet.coefficients, front * job.block_tokens, resident * job.block_tokens))
    suffix_us = up_to_us(prefill_ps(sheet.coefficients, job.token_count - cached, cached))
    fetched_us = up_to_us(fetched_ps)
    moved_bytes = pulled * job.block_bytes
    merge_us = up_to_us(
        moved_bytes * job.merge_ps_per_byte + resident * job.block_bytes * nodes[READ_PS_PER_BYTE, executor]
    )
    route_us = sheet.links[RTT_HIGH_US, job.ingress, executor]
    queue_us = nodes[QUEUED_WORK_US, executor]
    total_us = ttft_us(route_us, queue_us, fetched_us, front_us, suffix_us, merge_us)
    out[0, row] = action
    out[1, row] = executor
    out[2, row] = source
    out[3, row] = resident
    out[4, row] = pulled
    out[5, row] = front
    out[6, row] = route_us
    out[7, row] = queue_us
    out[8, row] = fetched_us
    out[9, row] = front_us + suffix_us
    out[10, row] = overlap_us(queue_us, fetched_us, front_us)
    out[11, row] = merge_us
    out[12, row] = total_us
    out[13, row] = job.token_count - (resident + pulled) * job.block_tokens
    out[14, row] = nodes[QUEUED_TOKENS, executor]
    out[15, row] = nodes[QUEUED_REQUESTS, executor]
    out[16, row] = sheet.links[RTT_US, job.ingress, executor]
    out[17, row] = moved_bytes
    return total_us


def may(sheet: Sheet, action: int) -> bool:
    """Whether `action` may be quoted."""
    return (sheet.job.actions >> action) & 1 == 1


def link_setup_ps(sheet: Sheet, source: int, reader: int) -> int:
    """Time before the first byte from `source` counts at `reader`."""
    links = sheet.links
    rate = links[PS_PER_BYTE_HIGH, source, reader]
    return setup_ps(links[RTT_HIGH_US, source, reader], links[INFLIGHT_BYTES, source, reader], rate)


def block_ps(sheet: Sheet, source: int, reader: int) -> int:
    """Time of one block from `source` to `reader`, read and sent or taken in, whichever is slower; at least 1."""
    sent = sheet.links[PS_PER_BYTE_HIGH, source, reader] + sheet.nodes[READ_PS_PER_BYTE, source]
    per_block: int = max(1, sheet.job.block_bytes * max(sent, sheet.job.receiver_ps_per_byte))
    return per_block


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


def put_multi(sheet: Sheet, row: int, executor: int, resident: int, first_row: int, ranked: Ints) -> int:
    """Row `row` is the best MULTI_PULL of `executor` from two or more sources; returns 1, or 0 if there is none.

    The sources are those of the PULL rows at `first_row` + `ranked`. Every depth that one of them reaches is tried as
    the end of the pulled part, the deepest first, unless what is left to compute alone takes longer than the best.
    """
    job, room = sheet.job, len(ranked)
    sources = np.empty((4, room), np.int64)
    able = np.empty((3, room), np.int64)
    counts = np.empty(room, np.int64)
    target = 0
    for i in range(room):
        source = sheet.out[SOURCE, first_row + ranked[i]]
        sources[0, i] = source
        sources[1, i] = link_setup_ps(sheet, source, executor)
        sources[2, i] = block_ps(sheet, source, executor)
        target = max(target, sheet.nodes[DEPTH, source])
    pieces = np.empty_like(sheet.pieces[executor])
    best_ps = -1
    best_target = 0
    best_fetched_ps = 0
    while target > resident:
        rest_ps = prefill_ps(sheet.coefficients, job.token_count - target * job.block_tokens, target * job.block_tokens)
        rest_ps += (target - resident) * job.block_bytes * job.merge_ps_per_byte
        if best_ps < 0 or rest_ps < best_ps:
            sources[3] = 0
            pieces[:] = 0
            deal(sheet, sources, able, counts, resident, target, pieces)
            used, fetched_ps = dealt_ps(sheet, sources, target - resident)
            if used > 1 and (best_ps < 0 or fetched_ps + rest_ps < best_ps):
                best_ps = fetched_ps + rest_ps
                best_target = target
                best_fetched_ps = fetched_ps
                sheet.pieces[executor] = pieces
        below = 0
        for i in range(room):
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


def put_split(sheet: Sheet, row: int, executor: int, source: int, resident: int) -> int:
    """Row `row` is the SPLIT of `executor` with `source`; returns 1, or 0 if fetching or computing all is best."""
    block_tokens = sheet.job.block_tokens
    pulled = sheet.nodes[DEPTH, source] - resident
    start_ps = link_setup_ps(sheet, source, executor)
    rate = block_ps(sheet, source, executor)
    front = front_of(sheet.coefficients, resident * block_tokens, block_tokens, pulled, start_ps, rate)
    if not 0 < front < pulled:
        return 0
    fetched_ps = fetch_ps(start_ps, pulled - front, rate)
    put_row(sheet, row, SPLIT, executor, source, resident, front, pulled - front, fetched_ps)
    return 1


def put_pulls(sheet: Sheet, row: int, executor: int, resident: int) -> int:
    """From row `row` on, PULL from every holder of more than `executor` has; returns how many."""
    count = 0
    for source in range(sheet.nodes.shape[1]):
        pulled = sheet.nodes[DEPTH, source] - resident
        if pulled > 0 and source != executor:
            fetched_ps = fetch_ps(link_setup_ps(sheet, source, executor), pulled, block_ps(sheet, source, executor))
            put_row(sheet, row + count, PULL, executor, source, resident, 0, pulled, fetched_ps)
            count += 1
    return count


def rank(times: Ints, ranked: Ints) -> None:
    """`ranked` holds the positions of the least of `times`, least first, the earlier one on a tie."""
    room = len(ranked)
    for i in range(len(times)):
        k = min(i, room)
        while k > 0 and times[ranked[k - 1]] > times[i]:
            if k < room:
                ranked[k] = ranked[k - 1]
            k -= 1
        if k < room:
            ranked[k] = i


def put_ways_to_fetch(sheet: Sheet, row: int, executor: int, resident: int) -> int:
    """From row `row` on, every allowed way that moves bytes to `executor`; returns how many rows."""
    out = sheet.out
    pull_count = put_pulls(sheet, row, executor, resident)
    if pull_count == 0:
        return 0
    # MULTI_PULL and SPLIT read the PULL rows and go after all of them; then everything moves up to the rows kept.
    ranked = np.empty(min(sheet.job.sources_max, pull_count), np.int64)
    rank(out[TTFT, row : row + pull_count], ranked)
    best = row + ranked[0]
    deepest = best
    for pull in range(row, row + pull_count):
        depth_gain = out[PULLED, pull] - out[PULLED, deepest]
        if depth_gain > 0 or (depth_gain == 0 and out[TTFT, pull] < out[TTFT, deepest]):
            deepest = pull
    end = row + pull_count
    if may(sheet, MULTI_PULL) and len(ranked) > 1:
        end += put_multi(sheet, end, executor, resident, row, ranked)
    if may(sheet, SPLIT):
        end += put_split(sheet, end, executor, out[SOURCE, best], resident)
    kept = row
    for old in range(row, end):
        is_pull = old < row + pull_count
        wanted = sheet.job.every_source == 1 or old in (best, deepest)
        if not is_pull or (may(sheet, PULL) and wanted):
            if old != kept:
                out[:, kept] = out[:, old]
            kept += 1
    return kept - row


def fill_rows(job_sheet: Sheet, executors: Ints) -> int:
    """All rows are written, executor by executor at its own pace; returns how many."""
    fetching = may(job_sheet, PULL) or may(job_sheet, MULTI_PULL) or may(job_sheet, SPLIT)
    row = 0
    for executor in executors:
        own = paced(job_sheet.coefficients, job_sheet.nodes[PACE_PERMILLE, executor])
        sheet = Sheet(job_sheet.out, job_sheet.pieces, own, job_sheet.job, job_sheet.nodes, job_sheet.links)
        put_row(sheet, row, RECOMPUTE, executor, NO_NODE, 0, 0, 0, 0)
        row += 1
        resident = sheet.nodes[DEPTH, executor]
        home = RESIDENT if executor == sheet.job.ingress else ROUTE
        if resident > 0 and may(sheet, home):
            put_row(sheet, row, home, executor, NO_NODE, resident, 0, 0, 0)
            row += 1
        if fetching:
            row += put_ways_to_fetch(sheet, row, executor, resident)
    return row


@cache
def compiled() -> Callable[[Sheet, Ints], int]:
    """`fill_rows`, compiled with Numba when that is installed (kept on disk between runs), else as it stands."""
    if importlib.util.find_spec("numba") is None:
        return fill_rows
    import numba
    from numba.extending import register_jitable

    formulas = (paced, prefill_ps, up_to_us, setup_ps, fetch_ps, overlap_us, ttft_us)
    splits = (finish_ps, next_finish_ps, delivered_blocks, fill, capped_ps, meet_ps, front_of)
    here = (
        put_row,
        may,
        link_setup_ps,
        block_ps,
        deal,
        dealt_ps,
        rank,
        put_multi,
        put_split,
        put_pulls,
        put_ways_to_fetch,
    )
    for function in (*formulas, *splits, *here, fill_rows):
        register_jitable(error_model="numpy")(function)
    sources = b"".join(Path(file).read_bytes() for file in (costing.__file__, splitting.__file__, __file__))
    fingerprint = hashlib.sha256(sources).hexdigest()

    def fill_all_rows(sheet: Sheet, executors: Ints) -> int:
        _ = fingerprint  # part of the key of the copy on disk, which by itself notices changes of this file only
        return fill_rows(sheet, executors)

    entry: Callable[[Sheet, Ints], int] = numba.njit(cache=True, error_model="numpy")(fill_all_rows)
    return entry
