"""The nouns on the arrows: request -> lookup -> judge -> quote -> select -> fetch -> merge -> record.

All are frozen values. Ids are plain integers: nodes are numbered from 0 (a node is one worker), tenants,
users, groups and scopes as `core/directory.py` numbers them. A request id is (router incarnation << 32) + counter.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

HASH_BYTES = 16  # a block hash is a keyed 128-bit digest; never less across tenants
MARK_BYTES = 8  # of the same digest as the hash, beyond it: blocks with one hash and two marks are a collision
TOKEN_NAME_BYTES = 4  # the name of a token only ever feeds an estimate


class Action(IntEnum):
    """The ways to get a prefix. RESIDENT and ROUTE differ only in whether the executor is the ingress node."""

    RECOMPUTE = 0
    RESIDENT = 1
    ROUTE = 2
    PULL = 3
    MULTI_PULL = 4
    SPLIT = 5


class Tier(IntEnum):
    """Where a holder keeps a block; smaller is faster."""

    DEVICE = 0
    HOST = 1
    DISK = 2


class Segment(Struct, frozen=True, kw_only=True, gc=False):
    """A stretch of the prompt that one party wrote: `scope_id` says who may share it."""

    scope_id: int
    token_count: int


class Request(Struct, frozen=True, kw_only=True, gc=False):
    """One prompt to be served. Its tokens stay with the driver; the core sees lengths and hashes only."""

    request_id: int
    tenant_id: int
    user_id: int = 0
    session_id: int = 0
    segments: tuple[Segment, ...]
    output_tokens_max: int
    ingress: int  # the node the client is nearest to; serving elsewhere costs that link's round trip
    arrival_us: int
    executor: int | None = None  # pinned executor, for controlled measurements; None lets the selector choose
    application: str = ""  # label for reports; never used in a decision

    @property
    def token_count(self) -> int:
        total = 0
        for segment in self.segments:  # twice as fast as `sum` of a generator, and asked for at every step
            total += segment.token_count
        return total


class Chain(Struct, frozen=True, kw_only=True, gc=False):
    """The block hashes of a prompt, first block first; equal at i implies equal before i (under one key).

    `hashes` is `HASH_BYTES` per *full* block, concatenated. `scope_ends` lists (scope id, first block after
    the run of blocks with this scope), covering all blocks; a block over two segments has the tighter scope.
    `marks` is `MARK_BYTES` per block, of the same digest: a block is only ever used where both agree.
    What only some indexes read (`ports.Reads`) is empty otherwise: `unit_ends`, the blocks after which a segment or
    sentence has ended, but for what is less than a block of it; `token_names`, `TOKEN_NAME_BYTES` per token, each of
    the prompt up to that token, by the key of its block.
    """

    hashes: bytes
    scope_ends: tuple[tuple[int, int], ...]
    block_tokens: int
    marks: bytes = b""
    unit_ends: tuple[int, ...] = ()
    token_names: bytes = b""

    @property
    def block_count(self) -> int:
        return len(self.hashes) // HASH_BYTES

    def block_hash(self, block_index: int) -> bytes:
        return self.hashes[block_index * HASH_BYTES : (block_index + 1) * HASH_BYTES]

    def block_hashes(self, start: int, end: int) -> tuple[bytes, ...]:
        """Of the blocks [start, end), which must be full ones of the chain; none where end <= start."""
        if end <= start:
            return ()
        return _equal_pieces(HASH_BYTES, end - start).unpack_from(self.hashes, start * HASH_BYTES)

    def mark(self, block_index: int) -> bytes:
        return mark_at(self.marks, block_index)

    def block_marks(self, start: int, end: int) -> tuple[bytes, ...]:
        """As `block_hashes`; empty ones where the chain has none."""
        if end <= start or not self.marks:
            return (b"",) * (end - start)
        return _equal_pieces(MARK_BYTES, end - start).unpack_from(self.marks, start * MARK_BYTES)

    def scope_at(self, block_index: int) -> int:
        """The scope id of a block; raises IndexError past the end."""
        for scope_id, end in self.scope_ends:
            if block_index < end:
                return scope_id
        raise IndexError(f"block {block_index} of a chain of {self.block_count}")


@lru_cache(maxsize=256)
def _equal_pieces(size_bytes: int, count: int) -> struct.Struct:
    """Cuts so many pieces of a size off bytes: a quarter of the time of as many slices."""
    return struct.Struct(f"{size_bytes}s" * count)


def mark_at(marks: bytes, position: int) -> bytes:
    """The mark of one block among those of several."""
    return marks[position * MARK_BYTES : (position + 1) * MARK_BYTES]


class Run(NamedTuple):
    """`block_count` first blocks of a chain, held by `node` in `tier`."""

    node: int
    tier: int
    block_count: int


class Match(Struct, frozen=True, kw_only=True, gc=False):
    """What the index says: per node and tier, the longest run of the chain from its start. Zero runs are left out."""

    runs: Sequence[Run]


class MissReason(IntEnum):
    """Why blocks of a prompt were not reused: every miss carries one. For the operator, never for a tenant."""

    UNKNOWN = 0  # no node holds the next block
    DENIED_SCOPE = 1  # somebody holds it, the reader has no right
    DENIED_EXPIRED = 2  # the membership has run out
    PARTIAL_BLOCK = 3  # the tail of the prompt is no full block
    LAST_TOKEN = 4  # the last prompt token is always computed
    NOT_WORTH = 5  # the selector chose to compute it
    STALE = 6  # the index said so, the holder no longer had it
    REFUSED = 7  # the holder, the quota or a deadline refused
    EVICTED = 8  # held once on this node, evicted since
    COLLISION = 9  # what is held under this hash are other tokens


class Verdict(Struct, frozen=True, kw_only=True, gc=False):
    """The part of a match this reader may use, and why not more: (reason, first block it applies to)."""

    runs: Sequence[Run]
    readable_blocks: int  # length of the chain's run of blocks whose scope the reader may read
    denied: tuple[tuple[MissReason, int], ...] = ()

    def depth(self, node: int) -> int:
        """Blocks of the chain usable on `node`, over all tiers."""
        return max((r.block_count for r in self.runs if r.node == node), default=0)


class NodeLoad(Struct, frozen=True, kw_only=True, gc=False):
    """What the router believes about a node when it decides."""

    node: int
    alive: bool = True
    queued_requests: int = 0  # dispatched by this router and not finished
    queued_tokens: int = 0  # prompt tokens of those, not discounted by cache hits
    queued_work_us: int = 0  # predicted prefill and decode not yet finished
    used_blocks: int = 0
    capacity_blocks: int = 0
    pace_permille: int = 1000  # how long its prefills take, in thousandths of what the cost model says
    held_up_requests: int = 0  # sent there and not ended, whose answers every further prefill holds up


class LinkRow(Struct, frozen=True, kw_only=True, gc=False):
    """One directed link in integer units. `_high` is the upper quantile that the selector uses."""

    rtt_us: int
    rtt_high_us: int
    ps_per_byte: int
    ps_per_byte_high: int
    inflight_bytes: int = 0


class Piece(Struct, frozen=True, kw_only=True, gc=False):
    """Blocks [start, end) of the chain to be fetched from one holder."""

    source: int
    start: int
    end: int

    @property
    def block_count(self) -> int:
        return self.end - self.start


NO_NODE = -1  # only inside QuoteTable columns, where an int64 must stand

PERMILLE = 1000
Column = NDArray[np.int64]
ByNode = NDArray[np.int64]  # a value per node, whatever the rows


class _At:
    """A column of a `QuoteTable`, by where it stands."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __get__(self, table: QuoteTable, _: object) -> Column:
        column: Column = table.cells[self.at]
        return column


class QuoteTable(Struct, frozen=True, kw_only=True, gc=False):
    """Predicted time to first token, by component: int64 columns, one row per way of serving the request.

    `ttft_us` is the sum of the components, rounded up once. `source` is the single holder of a PULL (else NO_NODE);
    `pieces` gives the fetches of every row that has any, aligned with the rows. Blocks split as
    resident | (recomputed front) | pulled | computed suffix. Columns below the line feed published baselines.
    """

    cells: Column  # [column, row]
    action = _At(0)
    executor = _At(1)
    source = _At(2)
    resident_blocks = _At(3)
    pulled_blocks = _At(4)
    front_blocks = _At(5)  # recomputed before the pulled part (SPLIT only)
    route_us = _At(6)  # round trip of ingress -> executor
    queue_us = _At(7)
    fetch_us = _At(8)
    prefill_us = _At(9)  # for SPLIT: front and suffix; the overlap is in `overlap_us`
    overlap_us = _At(10)  # time counted in both fetch_us and prefill_us
    merge_us = _At(11)
    ttft_us = _At(12)
    # -- for baselines
    uncached_tokens = _At(13)
    queued_tokens = _At(14)
    queued_requests = _At(15)
    rtt_us = _At(16)
    transfer_bytes = _At(17)
    pieces: Sequence[tuple[Piece, ...]]
    token_count: int
    block_tokens: int
    readable_blocks: int
    best_blocks: int  # longest usable run on any node
    draw: int  # a number that differs per request, for policies that need chance; from the request id
    ingress: int = 0  # the node nearest to the client
    session: int = 0  # equal for requests of one session, user or tenant, whichever is known
    start: int = 0  # equal for prompts with an equal start (256 tokens, or the first block where that is longer)
    decode_us: int = 0  # from the first token to the last, by the cost model, wherever it runs
    held_up_requests: ByNode = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))  # by node; empty: nobody is

    def __len__(self) -> int:
        return int(self.cells.shape[1])


COLUMNS = tuple(name for name, value in vars(QuoteTable).items() if isinstance(value, _At))
COMPONENTS = slice(6, 12)  # of a TTFT, among the columns


class Plan(Struct, frozen=True, kw_only=True, gc=False):
    """How one request is served: resident blocks | computed front | `pieces` fetched | computed suffix."""

    request_id: int
    action: Action
    executor: int
    resident_blocks: int
    front_blocks: int
    pieces: tuple[Piece, ...]
    quoted_ttft_us: int
    quoted_us: tuple[tuple[str, int], ...] = ()  # components by name, as in QuoteTable

    @property
    def pulled_blocks(self) -> int:
        return sum(p.block_count for p in self.pieces)

    @property
    def reused_blocks(self) -> int:
        return self.resident_blocks + self.pulled_blocks


class Status(IntEnum):
    """How a request ended."""

    DONE = 0
    REJECTED = 1
    FAILED = 2


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    """What happened to a request, with its times; written once. Times in us, of the clock named in each comment."""

    request_id: int
    tenant_id: int
    application: str
    status: Status
    reason: str = ""
    action: Action = Action.RECOMPUTE
    executor: int = 0
    ingress: int = 0
    arrival_us: int = 0  # router clock, offset from the start of the run
    ttft_us: int = 0  # router receipt to first token at the router
    end_to_end_us: int = 0
    route_us: int = 0  # components as measured; they sum to ttft_us with `other_us`
    queue_us: int = 0
    fetch_us: int = 0
    prefill_us: int = 0
    overlap_us: int = 0
    merge_us: int = 0
    held_us: int = 0  # the answer was there so much sooner than its tenant was told, see `core/shaping.py`
    shape_us: int = 0  # its tenant was to be told no sooner than this after receipt; 0: at once
    decode_us: int = 0
    decide_us: int = 0  # router: hash, lookup, judge, quote, select
    quoted_ttft_us: int = 0
    quoted_us: tuple[tuple[str, int], ...] = ()
    prompt_tokens: int = 0
    computed_tokens: int = 0
    resident_tokens: int = 0  # reused where they already were, executor = ingress
    routed_tokens: int = 0  # reused where they already were, executor chosen for them
    pulled_tokens: int = 0
    same_tenant_tokens: int = 0  # reused tokens first computed for this tenant
    cross_tenant_tokens: int = 0
    shown_tokens: int = 0  # of the reused, those its tenant is told of
    shown_executor: int = NO_NODE  # the node its tenant is told of, if of any
    pulled_bytes: int = 0
    collided_blocks: int = 0  # of those wanted: other tokens were found under their hash, and not used
    missed: tuple[tuple[int, int], ...] = ()  # (MissReason, tokens)
    output_tokens: tuple[int, ...] = ()  # not in what is kept: there `output_digest` stands for them
    output_digest: str = ""
    logit_fingerprint: tuple[float, ...] = ()  # top logits of the first token, to compare runs
    warmup: bool = False

    def __post_init__(self) -> None:
        reused = self.resident_tokens + self.routed_tokens + self.pulled_tokens
        assert self.status != Status.DONE or reused + self.computed_tokens == self.prompt_tokens
        assert self.status != Status.DONE or self.same_tenant_tokens + self.cross_tenant_tokens == reused


class AccountSpec(Struct, frozen=True, kw_only=True, gc=False):
    """The quota of one scope on every node, in blocks (converted once from bytes: reserved up, limit down)."""

    scope_id: int
    reserved_blocks: int
    limit_blocks: int
    priority: int = 0
    ttl_us: int | None = None
    sliding_ttl: bool = False
