"""Quote inputs and quote tables in one line: hand-made for golden decisions, drawn from a seed for properties."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from kvshare_research.core.nouns import (
    COLUMNS,
    HASH_BYTES,
    NO_NODE,
    Action,
    Chain,
    LinkRow,
    NodeLoad,
    Piece,
    QuoteTable,
    Request,
    Run,
    Segment,
    Verdict,
)
from kvshare_research.core.ports import QuoteInput

Cells = Sequence[Sequence[int]] | int  # [source][reader], or the same everywhere


def link_rows(node_count: int, rtt_us: Cells, ps_per_byte: Cells) -> tuple[tuple[LinkRow, ...], ...]:
    """Links without spread: what is expected is the upper quantile; a node has no way to itself."""

    def cell(table: Cells, source: int, reader: int) -> int:
        if source == reader:
            return 0
        return table if isinstance(table, int) else table[source][reader]

    def link(source: int, reader: int) -> LinkRow:
        rtt, rate = cell(rtt_us, source, reader), cell(ps_per_byte, source, reader)
        return LinkRow(rtt_us=rtt, rtt_high_us=rtt, ps_per_byte=rate, ps_per_byte_high=rate)

    return tuple(tuple(link(s, r) for r in range(node_count)) for s in range(node_count))


def quote_input(
    *,
    token_count: int = 1024,
    block_tokens: int = 16,
    depths: Mapping[int, int] | None = None,
    queued_us: Sequence[int] = (0, 0),
    queued_tokens: Sequence[int] | None = None,
    dead: Sequence[int] = (),
    rtt_us: Cells = 1_000,
    ps_per_byte: Cells = 1_000,
    block_bytes: int = 1_000,
    actions: Sequence[Action] = tuple(Action),
    executor: int | None = None,
    ingress: int = 0,
    request_id: int = 1,
) -> QuoteInput:
    """The input of a quote for as many nodes as `queued_us` has; `depths` maps a node to its usable blocks."""
    blocks = token_count // block_tokens
    tokens = queued_tokens if queued_tokens is not None else [0] * len(queued_us)
    request = Request(
        request_id=request_id,
        tenant_id=1,
        segments=(Segment(scope_id=0, token_count=token_count),),
        output_tokens_max=1,
        ingress=ingress,
        arrival_us=0,
        executor=executor,
    )
    loads = (
        NodeLoad(node=n, alive=n not in dead, queued_requests=int(us > 0), queued_tokens=tokens[n], queued_work_us=us)
        for n, us in enumerate(queued_us)
    )
    runs = (Run(node=n, tier=0, block_count=b) for n, b in (depths or {}).items())
    return QuoteInput(
        request=request,
        chain=Chain(hashes=bytes(HASH_BYTES * blocks), scope_ends=((0, blocks),), block_tokens=block_tokens),
        verdict=Verdict(runs=tuple(runs), readable_blocks=blocks),
        loads=tuple(loads),
        links=link_rows(len(queued_us), rtt_us, ps_per_byte),
        actions=frozenset(actions),
        block_bytes=block_bytes,
        draw=request_id,
    )


def random_input(seed: int, node_count_max: int = 6) -> QuoteInput:
    """A quote input drawn from `seed`: any depths, tiers, loads, links, dead nodes and allowed actions."""
    draw = random.Random(seed)
    node_count = draw.randint(1, node_count_max)
    token_count = draw.randint(1, 2_000)
    block_tokens = draw.choice([1, 8, 16, 64])
    block_count = token_count // block_tokens
    nodes = range(node_count)
    given = quote_input(
        token_count=token_count,
        block_tokens=block_tokens,
        queued_us=[draw.choice([0, draw.randint(0, 10**6)]) for _ in nodes],
        queued_tokens=[draw.randint(0, 4_000) for _ in nodes],
        dead=[n for n in nodes if draw.random() < 0.15],
        rtt_us=[[draw.randint(1, 300_000) for _ in nodes] for _ in nodes],
        ps_per_byte=[[draw.choice([80, 800, 8_000, draw.randint(1, 80_000)]) for _ in nodes] for _ in nodes],
        block_bytes=draw.choice([1_000, 46_080 * block_tokens]),
        actions=[a for a in Action if draw.random() < 0.8],
        executor=draw.choice([None, None, None, draw.randrange(node_count)]),
        ingress=draw.randrange(node_count),
        request_id=seed,
    )
    runs = tuple(
        Run(node=n, tier=tier, block_count=draw.randint(1, block_count))
        for n in nodes
        for tier in range(3)
        if block_count and draw.random() < 0.35
    )
    links = tuple(
        tuple(
            replace(link, inflight_bytes=0 if s == r else draw.choice([0, draw.randint(0, 10**8)]))
            for r, link in enumerate(row)
        )
        for s, row in enumerate(given.links)
    )
    return replace(given, verdict=replace(given.verdict, runs=runs), links=links)


_EMPTY = QuoteTable(
    cells=np.zeros((len(COLUMNS), 0), np.int64),
    pieces=(),
    token_count=0,
    block_tokens=1,
    readable_blocks=0,
    best_blocks=0,
    draw=1,
)


def table_of(rows: Sequence[Mapping[str, int]], *, token_count: int = 1024, block_tokens: int = 16) -> QuoteTable:
    """A table from hand-written rows: absent columns are 0 (`source` NO_NODE), `ttft_us` the sum of the components."""
    columns = {name: np.zeros(len(rows), np.int64) for name in COLUMNS}
    columns["source"] += NO_NODE
    pieces: list[tuple[Piece, ...]] = []
    for i, row in enumerate(rows):
        for name, value in row.items():
            columns[name][i] = value
        if "ttft_us" not in row:
            parts = sum(row.get(n, 0) for n in ("route_us", "queue_us", "fetch_us", "prefill_us", "merge_us"))
            columns["ttft_us"][i] = parts - row.get("overlap_us", 0)
        start = row.get("resident_blocks", 0) + row.get("front_blocks", 0)
        pulled = row.get("pulled_blocks", 0)
        pieces.append((Piece(source=row.get("source", 0), start=start, end=start + pulled),) if pulled else ())
    return replace(
        _EMPTY,
        cells=np.stack(list(columns.values())),
        pieces=tuple(pieces),
        token_count=token_count,
        block_tokens=block_tokens,
        readable_blocks=token_count // block_tokens,
        best_blocks=max((row.get("resident_blocks", 0) + row.get("pulled_blocks", 0) for row in rows), default=0),
    )


def reordered(table: QuoteTable, order: Sequence[int]) -> QuoteTable:
    """The same rows in another order; row i is the old row `order[i]`."""
    return replace(table, cells=table.cells[:, list(order)], pieces=tuple(table.pieces[i] for i in order))
