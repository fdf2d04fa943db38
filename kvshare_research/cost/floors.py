"""Of a quote from which only the best row is wanted: what no row of an executor can beat, and which row is best.

Ordinary Python over the formulas of `core/costing.py`; `kernel.py` compiles it.
"""

from __future__ import annotations

from kvshare_research.core.costing import prefill_ps, priced_us, setup_ps, up_to_us
from kvshare_research.core.loads import ALIVE, HELD_UP_REQUESTS, QUEUED_WORK_US
from kvshare_research.core.nouns import NO_NODE, Action

from .sheet import (
    DEPTH,
    ROUTE_US,
    Given,
    Ints,
    Sheet,
)

MULTI_PULL = int(Action.MULTI_PULL)
TTFT_AT, PREFILL_AT = 12, 9  # columns of a row
RANKED_BY = (TTFT_AT, 17, 0, 1, 2)  # those that `core.costing.better` goes by: TTFT, bytes, action, executor, source


def may_serve(given: Given, executor: int) -> bool:
    """Whether the node is alive, and not passed over for the one the request is pinned to."""
    pinned = given.job.executor
    return given.nodes[ALIVE, executor] != 0 and pinned in (NO_NODE, executor)


def depths_of(sheet: Sheet, depths: Ints) -> int:
    """`depths` begins with what any holder holds, each depth once if the deepest come first; returns how many."""
    count, at = 0, 0
    while at < len(sheet.holders):
        depths[count] = sheet.nodes[DEPTH, sheet.holders[at]]
        at = sheet.ends[at]
        count += 1
    return count


def longest_of(depths: Ints) -> int:
    """The greatest of some depths; 0 without one."""
    longest = 0
    for i in range(len(depths)):
        longest = max(longest, depths[i])
    return longest


def likeliest(given: Given, sheet: Sheet) -> int:
    """The node that is free soonest of those that hold most, or of all if nobody holds anything; NO_NODE if none may
    serve. A guess at the best executor: it decides only how soon others can be left out."""
    best = NO_NODE
    best_us = 0
    count = sheet.ends[0] if len(sheet.holders) > 0 else sheet.nodes.shape[1]
    for i in range(count):
        node = sheet.holders[i] if len(sheet.holders) > 0 else i
        if may_serve(given, node):
            free_us = sheet.nodes[QUEUED_WORK_US, node] + sheet.nodes[ROUTE_US, node]
            if best == NO_NODE or free_us < best_us:
                best, best_us = node, free_us
    return best


def price_floor_us(sheet: Sheet, depths: Ints, executor: int) -> int:
    """No row of the executor at hand has a lower price. `depths` are all that anybody holds.

    TTFT is route + max(fetch, queue + front) + suffix + merge. Of m blocks to a depth, each is computed by the executor
    (in the front, which takes c1 a token at least) or merged, so queue + front + merge >= queue + m times the lesser;
    and a fetch takes no less than the setup of the best link. The suffix is that of one of the depths, or all.
    """
    job, nodes, own, tokens = sheet.job, sheet.nodes, sheet.coefficients, sheet.job.token_count
    resident = nodes[DEPTH, executor]
    least_us = up_to_us(prefill_ps(own, tokens, 0))  # RECOMPUTE
    prefill_us = least_us
    least_us += nodes[QUEUED_WORK_US, executor]
    start_us = up_to_us(setup_ps(sheet.links.rtt_least_us, 0, sheet.links.rate_least_ps))
    per_block_ps = min(job.block_bytes * job.merge_ps_per_byte, job.block_tokens * own.c1_ps_per_token)
    for i in range(len(depths)):
        depth = depths[i]
        if depth < resident:
            continue
        cached = depth * job.block_tokens
        suffix_us = up_to_us(prefill_ps(own, tokens - cached, cached))
        busy_us = nodes[QUEUED_WORK_US, executor]
        if depth > resident:
            busy_us = max(busy_us + up_to_us((depth - resident) * per_block_ps), start_us)
        least_us = min(least_us, busy_us + suffix_us)
        prefill_us = min(prefill_us, suffix_us)
    held_up = nodes[HELD_UP_REQUESTS, executor]
    price_us: int = priced_us(nodes[ROUTE_US, executor] + least_us, prefill_us, held_up, job.least_at_permille)
    return price_us


def row_price_us(sheet: Sheet, row: int) -> int:
    """What the row costs its request, and others by holding them up."""
    out, weigh_permille = sheet.out, sheet.job.least_at_permille
    held_up = sheet.nodes[HELD_UP_REQUESTS, out[1, row]]
    price: int = priced_us(out[TTFT_AT, row], out[PREFILL_AT, row], held_up, weigh_permille)
    return price


def beats(sheet: Sheet, row: int, best: int) -> bool:
    """Whether `row` has the lower price, or is `better` of two that cost the same."""
    more_us = row_price_us(sheet, row) - row_price_us(sheet, best)
    if more_us != 0:
        return more_us < 0
    for column in RANKED_BY:
        if sheet.out[column, row] != sheet.out[column, best]:
            return bool(sheet.out[column, row] < sheet.out[column, best])
    return False


def keep_best(sheet: Sheet, first: int, end: int) -> int:
    """Row 0 is the best of itself and rows [first, end), of which there are some; returns 1, the rows there are now."""
    best = 0
    for row in range(first, end):
        if row > 0 and beats(sheet, row, best):
            best = row
    if best > 0:
        for column in range(len(sheet.out)):
            sheet.out[column, 0] = sheet.out[column, best]
        if sheet.out[0, 0] == MULTI_PULL:
            for piece in range(sheet.pieces.shape[1]):
                for k in range(3):
                    sheet.pieces[0, piece, k] = sheet.pieces[best, piece, k]
    return 1
