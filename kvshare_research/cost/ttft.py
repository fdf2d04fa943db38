"""Quoted time to first token of every way of serving a request, by component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import final, overload

import numpy as np

from kvshare_research.core.costing import PrefillCoefficients, decode_ps, up_to_us
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.loads import (
    HELD_UP_REQUESTS,
    LOAD_ROWS,
    PACE_PERMILLE,
    QUEUED_WORK_US,
    LoadTable,
    load_table,
)
from kvshare_research.core.nouns import COLUMNS, NO_NODE, PERMILLE, Action, Chain, Piece, QuoteTable, Request
from kvshare_research.core.ports import Cost, QuoteInput
from kvshare_research.core.runs import cells_of

from .kernel import ROWS_PER_EXECUTOR, compiled, room_for
from .links import matrix_of
from .sheet import LINK_FIELDS, NODE_ROWS, Given, Ints, Job, LinkState

START_TOKENS = 256  # of a prompt, by which policies without an index tell prompts apart


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TtftCost(Cost):
    """route + max(fetch, queue + recomputed front) + suffix prefill + merge, per executor and way; changes nothing.

    Rows of a live executor (or only of the pinned one): RECOMPUTE always, since a refused plan ends there; RESIDENT or
    ROUTE with what it holds; PULL from the best and from the deepest holder (from each with `every_source`); MULTI_PULL
    when two or more of the `sources_max` best holders share the work; SPLIT with the best holder when computing
    the front while fetching the rest beats both. Blocks already on the executor are used by every way but RECOMPUTE.
    The last prompt token is always computed and only whole blocks are reused. No live executor gives a table without
    rows.

    Coefficients are integer picoseconds (see `core/costing.py`); a `Calibration` gives measured ones. The `no_*` fields
    are ablations: what a model blind to round trips, rates, load, merging or the pace of nodes would quote.
    """

    c0_ps: int
    c1_ps_per_token: int
    c2_ps_per_token: int
    c3_ps_per_token2: int
    c4_ps_per_token2: int
    merge_ps_per_byte: int
    decode_step_ps: int = 0  # of one token of an answer
    decode_ps_per_token: int = 0  # of each token before it, on top
    receiver_ps_per_byte: int = 0  # of the reader's own link, shared by all its sources; 0 is never the bottleneck
    tier_ps_per_byte: tuple[int, int, int] = (0, 0, 0)  # to read a block from device, host, disk memory
    sources_max: int = 4
    every_source: bool = False
    single_source: bool = False
    no_rtt: bool = False
    no_bandwidth: bool = False
    no_load: bool = False
    no_merge: bool = False
    no_pace: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tier_ps_per_byte", tuple(self.tier_ps_per_byte))
        if len(self.tier_ps_per_byte) != 3:
            raise ConfigError(
                f"`tier_ps_per_byte` has {len(self.tier_ps_per_byte)} values, expected device, host, disk"
            )
        amounts = (
            *self.coefficients, self.merge_ps_per_byte, self.receiver_ps_per_byte, *self.tier_ps_per_byte,
            self.decode_step_ps, self.decode_ps_per_token,
        )  # fmt: skip
        if min(amounts) < 0:
            raise ConfigError("a cost coefficient is negative, expected all >= 0, so that more work never takes less")
        if self.sources_max < 1:
            raise ConfigError(f"`sources_max` is {self.sources_max}, expected >= 1")

    @property
    def coefficients(self) -> PrefillCoefficients:
        return PrefillCoefficients(
            self.c0_ps, self.c1_ps_per_token, self.c2_ps_per_token, self.c3_ps_per_token2, self.c4_ps_per_token2
        )

    def quote(self, given: QuoteInput) -> QuoteTable:
        """One row per way of serving `given.request`; changes nothing."""
        request, chain = given.request, given.chain
        token_count, block_tokens = request.token_count, chain.block_tokens
        links = self._links(given)
        node_count = len(links.links)
        cap = min((token_count - 1) // block_tokens, chain.block_count, given.verdict.readable_blocks)
        loads = load_table(given.loads)
        nodes = self._nodes(loads, node_count)
        may = _bits(given.actions)
        if self.single_source:
            may &= ~(1 << int(Action.MULTI_PULL))
        job = Job(
            token_count,
            block_tokens,
            given.block_bytes,
            request.ingress,
            may,
            int(self.every_source),
            self.sources_max,
            0 if self.no_merge else self.merge_ps_per_byte,
            0 if self.no_bandwidth else self.receiver_ps_per_byte,
            max(0, cap),
            NO_NODE if request.executor is None else request.executor,
            -1 if given.least_at_permille is None else given.least_at_permille,
        )
        # The best so far and those of one executor, or those of all.
        groups = 2 if given.least_at_permille is not None or request.executor is not None else node_count
        row_room = groups * (ROWS_PER_EXECUTOR + (node_count if self.every_source else 0))
        out = np.empty((len(COLUMNS), row_room), np.int64)
        runs = cells_of(given.verdict.runs)
        room = room_for(node_count, self.sources_max)
        multi = np.empty((row_room, self.sources_max * self.sources_max, 3), np.int64)
        asked = Given(self.coefficients, job, runs, self.tier_ps_per_byte, nodes, links)
        row_count, longest = compiled()(asked, out, multi, room)
        return QuoteTable(
            cells=out[:, :row_count],
            pieces=Pieces(out, multi, row_count),
            token_count=token_count,
            block_tokens=block_tokens,
            readable_blocks=given.verdict.readable_blocks,
            best_blocks=longest,
            draw=given.draw,
            ingress=request.ingress,
            session=request.session_id or request.user_id or request.tenant_id,
            start=_start(chain),
            decode_us=self._decode_us(request),
            held_up_requests=nodes[HELD_UP_REQUESTS],
        )

    def _decode_us(self, request: Request) -> int:
        """The whole answer after its first token, if nothing ends it early."""
        steps = max(0, request.output_tokens_max - 1)
        return up_to_us(decode_ps(self.decode_step_ps, self.decode_ps_per_token, steps, request.token_count))

    def _links(self, given: QuoteInput) -> LinkState:
        """What the kernel reads of the links, blinded as configured."""
        state = matrix_of(given.links).state
        if self.no_rtt:
            state = state._replace(sees_rtt=0, rtt_least_us=0)
        if self.no_bandwidth:
            state = state._replace(sees_rate=0, rate_least_ps=0)
        return state

    def _nodes(self, loads: LoadTable, node_count: int) -> Ints:
        """The rows that the kernel reads, blinded as configured; it fills in the rest."""
        nodes = np.empty((NODE_ROWS, node_count), np.int64)
        nodes[:LOAD_ROWS] = loads.cells
        if self.no_pace:
            nodes[PACE_PERMILLE] = PERMILLE
        if self.no_load:
            nodes[QUEUED_WORK_US] = 0
            nodes[HELD_UP_REQUESTS] = 0
        return nodes


def prepare() -> None:
    """The loop behind a quote is compiled (seconds, once per version of its source); no decision waits for it."""
    compiled()(
        Given(
            PrefillCoefficients(0, 0, 0, 0, 0),
            Job(1, 1, 1, 0, 0, 0, 1, 0, 0, 0, NO_NODE, -1),
            np.zeros((0, 3), np.int64),
            (0, 0, 0),
            np.zeros((NODE_ROWS, 1), np.int64),
            LinkState(np.zeros((1, 1, LINK_FIELDS), np.int64), 0, 0, 1),
        ),
        np.zeros((len(COLUMNS), 1), np.int64),
        np.zeros((1, 1, 3), np.int64),
        room_for(1, 1),
    )


@cache
def _bits(actions: frozenset[Action]) -> int:
    """Bit a is set when action a is among them."""
    return sum(1 << int(action) for action in actions)


def _start(chain: Chain) -> int:
    """A number for how the prompt starts; 0 for one without a full block."""
    depth = min(chain.block_count, max(1, START_TOKENS // chain.block_tokens))
    return int.from_bytes(chain.block_hash(depth - 1)[:7], "little") if depth else 0


@final
class Pieces(Sequence[tuple[Piece, ...]]):
    """The fetches of each row, made when asked for: a decision reads one row of many."""

    __slots__ = ("multi", "out", "row_count")

    def __init__(self, out: Ints, multi: Ints, row_count: int) -> None:
        self.out, self.multi, self.row_count = out, multi, row_count

    def __len__(self) -> int:
        return self.row_count

    @overload
    def __getitem__(self, row: int) -> tuple[Piece, ...]: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[tuple[Piece, ...], ...]: ...
    def __getitem__(self, row: int | slice) -> tuple[Piece, ...] | tuple[tuple[Piece, ...], ...]:
        if isinstance(row, slice):
            return tuple(self[i] for i in range(self.row_count)[row])
        row = range(self.row_count)[row]
        action, _, source, resident, pulled, front = self.out[:6, row].tolist()
        if action == Action.MULTI_PULL:
            found = [(start, end, node) for node, start, end in self.multi[row].tolist() if end > start]
            return tuple(Piece(source=node, start=start, end=end) for start, end, node in sorted(found))
        if pulled == 0:
            return ()
        start = resident + front
        return (Piece(source=source, start=start, end=start + pulled),)
