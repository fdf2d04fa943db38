"""What the loop behind a quote reads and writes, and the price of one way: arrays and ints, so that it can be compiled.

Ordinary Python over the formulas of `core/costing.py`; `kernel.py` compiles it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.costing import (
    Amount,
    PrefillCoefficients,
    overlap_us,
    prefill_ps,
    ttft_us,
    up_to_us,
)
from kvshare_research.core.loads import ALIVE, LOAD_ROWS, QUEUED_REQUESTS, QUEUED_TOKENS, QUEUED_WORK_US

Ints = NDArray[np.int64]

# Rows of `nodes`: arrays and not records, since few arguments compile and call quickest. First those of a `LoadTable`.
NODE_ROWS = LOAD_ROWS + 4
DEPTH, READ_PS_PER_BYTE, ROUTE_US, RTT_US = range(LOAD_ROWS, NODE_ROWS)


# Fields of a link; eight, so that one link is one line of the cache.
RTT, RTT_DEVIATION, RATE, RATE_DEVIATION, INFLIGHT_BYTES, MEASURED, RATED = range(7)
LINK_FIELDS = 8


class LinkState(NamedTuple):
    """All directed links, and how they are weighed at `now_us`. Times in us, rates in ps per byte."""

    links: Ints  # [source, reader, field]; MEASURED is -1 for never
    now_us: int
    deviations: int
    stale_us: int
    rtt_least_us: int = 0  # no link between two nodes is believed to be quicker than this,
    rate_least_ps: int = 0  # or to take less time per byte
    sees_rtt: int = 1  # 0: round trips are priced as nothing
    sees_rate: int = 1  # 0: bytes are


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
    cap_blocks: int  # what may be reused at all
    executor: int  # the only node that may serve; NO_NODE for any
    least_at_permille: int  # only the row of least price at this weight is wanted; -1 for all rows


class Given(NamedTuple):
    """All that a quote is worked out from."""

    coefficients: PrefillCoefficients
    job: Job
    runs: Ints  # [run][node, tier, block_count]
    tier_ps_per_byte: tuple[int, int, int]  # to read a block
    nodes: Ints  # [NODE_ROWS, node]: loads as given; `seat` fills in the rest
    links: LinkState


class Sheet(NamedTuple):
    """What a row is made from, and where it goes: `out` in the order of `COLUMNS`, `pieces` of MULTI_PULL rows.

    Few arrays: each costs whenever a sheet is handed on.
    """

    out: Ints  # [column, row], as in `QuoteTable`
    pieces: Ints  # [row, piece, (source, start, end)], of MULTI_PULL rows; an empty piece is none
    nodes: Ints  # [NODE_ROWS, node]; the depth of a node that may not serve as a source is 0
    holders: Ints  # the nodes whose depth is not 0, in the order of `line_up`
    ends: Ints
    links: LinkState
    coefficients: PrefillCoefficients  # of the executor at hand
    job: Job


def believed(mean: Amount, deviation: Amount, deviations: int, age_us: Amount, stale_us: int) -> Amount:
    """The upper quantile of a link: its mean, its spread, and up to half of the mean for silence (age <= stale)."""
    return mean + deviations * deviation + mean * age_us // (2 * stale_us)


def age_us(state: LinkState, source: int, reader: int) -> int:
    """How long ago the link was last measured, at most `stale_us`; 0 for one never measured."""
    measured_us = int(state.links[source, reader, MEASURED])
    return 0 if measured_us < 0 else min(max(state.now_us - measured_us, 0), state.stale_us)


def rtt_high_us(state: LinkState, source: int, reader: int) -> int:
    """Upper quantile of the round trip; a node has none to itself."""
    if source == reader or state.sees_rtt == 0:
        return 0
    mean, deviation = int(state.links[source, reader, RTT]), int(state.links[source, reader, RTT_DEVIATION])
    return believed(mean, deviation, state.deviations, age_us(state, source, reader), state.stale_us)


def rate_high_ps(state: LinkState, source: int, reader: int) -> int:
    """Upper quantile of the time per byte, between two nodes."""
    if state.sees_rate == 0:
        return 0
    mean, deviation = int(state.links[source, reader, RATE]), int(state.links[source, reader, RATE_DEVIATION])
    return believed(mean, deviation, state.deviations, age_us(state, source, reader), state.stale_us)


def seat(given: Given, holders: Ints, ends: Ints) -> int:
    """`nodes` has depths (of the longest run, in the quickest tier of equals) and round trips, `holders` begins with
    the nodes that hold anything, as `line_up` orders them; returns how many."""
    job, nodes = given.job, given.nodes
    depth, read = nodes[DEPTH], nodes[READ_PS_PER_BYTE]
    depth[:] = 0
    read[:] = 0
    for i in range(len(given.runs)):
        node, blocks = given.runs[i, 0], min(given.runs[i, 2], job.cap_blocks)
        rate = given.tier_ps_per_byte[min(given.runs[i, 1], 2)]
        if nodes[ALIVE, node] and (blocks > depth[node] or (blocks == depth[node] > 0 and rate < read[node])):
            depth[node], read[node] = blocks, rate
    for node in range(len(depth)):
        nodes[ROUTE_US, node] = rtt_high_us(given.links, job.ingress, node)
        nodes[RTT_US, node] = 0 if node == job.ingress else given.links.links[job.ingress, node, RTT]
    return line_up(depth, job.every_source, holders, ends)


def line_up(depth: Ints, every_source: int, holders: Ints, ends: Ints) -> int:
    """`holders` begins with the nodes that hold anything: the deepest first, equally deep ones by node, ends[i] being
    where those as deep as holder i end; with `every_source` all by node, each by itself. Returns how many."""
    count = 0
    deep = 0
    for node in range(len(depth)):
        deep = max(deep, depth[node])
    while deep > 0:
        first, below = count, 0
        for node in range(len(depth)):
            if depth[node] == deep or (every_source == 1 and depth[node] > 0):
                holders[count] = node
                count += 1
            elif below < depth[node] < deep:
                below = depth[node]
        for i in range(first, count):
            ends[i] = i + 1 if every_source == 1 else count
        deep = below
    return count


def block_ps(job: Job, sent_ps_per_byte: int) -> int:
    """Time of one block, read and sent or taken in, whichever is slower; at least 1."""
    per_block: int = max(1, job.block_bytes * max(sent_ps_per_byte, job.receiver_ps_per_byte))
    return per_block


def merging_us(sheet: Sheet, executor: int, resident: int, pulled: int) -> int:
    """Time to put pulled blocks where attention reads them, and to read resident ones from their tier."""
    job = sheet.job
    read = resident * job.block_bytes * sheet.nodes[READ_PS_PER_BYTE, executor]
    return up_to_us(pulled * job.block_bytes * job.merge_ps_per_byte + read)


def pull_us(sheet: Sheet, executor: int, source: int, resident: int, fetched_ps: int) -> int:
    """TTFT of pulling all that `source` has beyond `resident`: what `put_row` writes, without writing it."""
    job, nodes = sheet.job, sheet.nodes
    depth = nodes[DEPTH, source]
    cached = depth * job.block_tokens
    suffix_us = up_to_us(prefill_ps(sheet.coefficients, job.token_count - cached, cached))
    merge_us = merging_us(sheet, executor, resident, depth - resident)
    route_us, queue_us = nodes[ROUTE_US, executor], nodes[QUEUED_WORK_US, executor]
    return ttft_us(route_us, queue_us, up_to_us(fetched_ps), 0, suffix_us, merge_us)


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
) -> None:
    """Row `row` is written."""
    job, nodes, out = sheet.job, sheet.nodes, sheet.out
    cached = (resident + front + pulled) * job.block_tokens
    front_us = up_to_us(prefill_ps(sheet.coefficients, front * job.block_tokens, resident * job.block_tokens))
    suffix_us = up_to_us(prefill_ps(sheet.coefficients, job.token_count - cached, cached))
    fetched_us = up_to_us(fetched_ps)
    merge_us = merging_us(sheet, executor, resident, pulled)
    route_us, queue_us = nodes[ROUTE_US, executor], nodes[QUEUED_WORK_US, executor]
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
    out[12, row] = ttft_us(route_us, queue_us, fetched_us, front_us, suffix_us, merge_us)
    out[13, row] = job.token_count - (resident + pulled) * job.block_tokens
    out[14, row] = nodes[QUEUED_TOKENS, executor]
    out[15, row] = nodes[QUEUED_REQUESTS, executor]
    out[16, row] = nodes[RTT_US, executor]
    out[17, row] = pulled * job.block_bytes
