"""Events (it happened) and effects (please do) of the router and the worker. All frozen, all serialisable.

A driver hands events to `handle(event, now_us)` and performs the effects it gets back; nothing else passes.
"""

from __future__ import annotations

from msgspec import Struct

from .directory import Directory

# isort: off
from .foretold import (
    KeepPrefixes as KeepPrefixes,
    PrefetchAsked as PrefetchAsked,
    PrefetchCancelled as PrefetchCancelled,
    PrefetchEnded as PrefetchEnded,
    PrefixesKept as PrefixesKept,
    PrefixesReleased as PrefixesReleased,
    ReportKept as ReportKept,
    ReportPrefetch as ReportPrefetch,
    SendKeep as SendKeep,
    SendPrefetch as SendPrefetch,
)
from .nouns import Chain, Outcome, Plan, Request
from .poollog import (
    BlocksRemoved as BlocksRemoved,
    BlocksStored as BlocksStored,
    Heartbeat as Heartbeat,
    PoolEvent as PoolEvent,
    PoolMessage as PoolMessage,
    Snapshot as Snapshot,
    TierCleared as TierCleared,
)
from .rights import Reader, Ticket
# isort: on


# ------------------------------------------------------------- router: events
class Arrived(Struct, frozen=True, kw_only=True, gc=False):
    request: Request
    chain: Chain


class PoolChanged(Struct, frozen=True, kw_only=True, gc=False):
    message: PoolMessage


class LoadReported(Struct, frozen=True, kw_only=True, gc=False):
    """A worker's own word on its load, piggybacked on its messages."""

    node: int
    used_blocks: int
    capacity_blocks: int


class FirstToken(Struct, frozen=True, kw_only=True, gc=False):
    request_id: int
    node: int


class Completed(Struct, frozen=True, kw_only=True, gc=False):
    """The worker's account of a request; the router adds its own times and records it."""

    request_id: int
    outcome: Outcome


class PlanRefused(Struct, frozen=True, kw_only=True, gc=False):
    """The worker cannot follow the plan (typed reason); it returns once to the router."""

    request_id: int
    node: int
    reason: str


class LinkMeasured(Struct, frozen=True, kw_only=True, gc=False):
    """A transfer (or probe) over source -> reader took this long; `bytes_moved` 0 means a bare round trip."""

    source: int
    reader: int
    bytes_moved: int
    elapsed_us: int


class NodeLost(Struct, frozen=True, kw_only=True, gc=False):
    node: int


class NodeJoined(Struct, frozen=True, kw_only=True, gc=False):
    node: int
    incarnation: int
    capacity_blocks: int


class DirectoryChanged(Struct, frozen=True, kw_only=True, gc=False):
    directory: Directory


class DirectoryAcknowledged(Struct, frozen=True, kw_only=True, gc=False):
    node: int
    revision: int


class Ticked(Struct, frozen=True, kw_only=True, gc=False):
    """Time passed; leases, deadlines and speculative entries may run out."""


RouterEvent = (
    Arrived
    | PoolChanged
    | LoadReported
    | FirstToken
    | Completed
    | PlanRefused
    | LinkMeasured
    | NodeLost
    | NodeJoined
    | DirectoryChanged
    | DirectoryAcknowledged
    | PrefetchEnded
    | PrefixesReleased
    | PrefixesKept
    | Ticked
)


# ------------------------------------------------------------- router: effects
class Dispatch(Struct, frozen=True, kw_only=True, gc=False):
    """Send the request (its tokens are with the driver) and its plan to `plan.executor`."""

    request: Request
    chain: Chain
    plan: Plan
    reader: Reader


class AskSnapshot(Struct, frozen=True, kw_only=True, gc=False):
    """Ask a worker for what comes after `after_seq` of `incarnation`, or for a snapshot; see `core/journal.py`."""

    node: int
    incarnation: int = 0
    after_seq: int = 0


class Reject(Struct, frozen=True, kw_only=True, gc=False):
    request_id: int
    reason: str


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """The request has ended. Nobody is told before `release_us`; 0: at once."""

    outcome: Outcome
    release_us: int = 0


class SendDirectory(Struct, frozen=True, kw_only=True, gc=False):
    node: int
    directory: Directory


RouterEffect = Dispatch | AskSnapshot | Reject | Record | SendDirectory | SendPrefetch | SendKeep


# ------------------------------------------------------------- worker: events
class Dispatched(Struct, frozen=True, kw_only=True, gc=False):
    request: Request
    chain: Chain
    plan: Plan
    reader: Reader


class FetchAsked(Struct, frozen=True, kw_only=True, gc=False):
    """Another worker wants blocks: the holder decides, with its own tables, at its own clock."""

    fetch_id: int  # unique per asking node
    asker: int
    reader: Reader
    hashes: tuple[bytes, ...]
    revision: int  # the asker's directory revision
    background: bool = False  # a prefetch: what requests need goes first
    marks: bytes = b""  # of these blocks, as in `Chain`


class FetchSent(Struct, frozen=True, kw_only=True, gc=False):
    """The driver has sent the last byte (or given up): the pins of this fetch end."""

    fetch_id: int
    asker: int


class FetchLanded(Struct, frozen=True, kw_only=True, gc=False):
    """Bytes of a fetch are in the reserved slots and passed the integrity check (`intact`)."""

    fetch_id: int
    block_count: int
    tickets: tuple[Ticket, ...]
    origins: tuple[int, ...]  # tenant that first computed each block
    bytes_moved: int
    elapsed_us: int
    merge_us: int
    intact: bool
    marks: bytes = b""  # of what the holder sent, as in `Chain`


class FetchFailed(Struct, frozen=True, kw_only=True, gc=False):
    """Refused by the holder, or past its deadline: the reader computes instead."""

    fetch_id: int
    reason: str


class PrefillDone(Struct, frozen=True, kw_only=True, gc=False):
    """Tokens [.., end_token) of the prompt are in the pool; `first_token` when this was the last stretch."""

    request_id: int
    end_token: int
    elapsed_us: int
    merge_us: int
    first_token: int | None
    logit_fingerprint: tuple[float, ...] = ()
    attention: tuple[float, ...] = ()  # mass on each block up to `end_token`, where the engine reports it


class DecodeDone(Struct, frozen=True, kw_only=True, gc=False):
    request_id: int
    tokens: tuple[int, ...]
    elapsed_us: int


class EngineFailed(Struct, frozen=True, kw_only=True, gc=False):
    request_id: int
    reason: str


class SnapshotAsked(Struct, frozen=True, kw_only=True, gc=False):
    """A router has `after_seq` entries of `incarnation` and misses some; answered by `Journal.answer`."""

    incarnation: int = 0
    after_seq: int = 0


WorkerEvent = (
    Dispatched
    | PrefetchAsked
    | PrefetchCancelled
    | KeepPrefixes
    | FetchAsked
    | FetchSent
    | FetchLanded
    | FetchFailed
    | PrefillDone
    | DecodeDone
    | EngineFailed
    | SnapshotAsked
    | DirectoryChanged
    | Ticked
)


# ------------------------------------------------------------- worker: effects
class Fetch(Struct, frozen=True, kw_only=True, gc=False):
    """Ask `source` for `hashes` and land them in `slots`; past `deadline_us` report FetchFailed."""

    fetch_id: int
    request_id: int
    source: int
    reader: Reader
    hashes: tuple[bytes, ...]
    slots: tuple[int, ...]
    deadline_us: int
    background: bool = False
    marks: bytes = b""


class CancelFetch(Struct, frozen=True, kw_only=True, gc=False):
    fetch_id: int


class SendBlocks(Struct, frozen=True, kw_only=True, gc=False):
    """The rule said yes: send these slots (pinned until FetchSent). What else is here travels with the bytes."""

    fetch_id: int
    asker: int
    slots: tuple[int, ...]
    tickets: tuple[Ticket, ...]
    origins: tuple[int, ...]
    marks: bytes = b""
    background: bool = False


class RefuseFetch(Struct, frozen=True, kw_only=True, gc=False):
    fetch_id: int
    asker: int
    reason: str


class Prefill(Struct, frozen=True, kw_only=True, gc=False):
    """Compute prompt tokens [start_token, end_token) into `slots` (one per block of the whole sequence)."""

    request_id: int
    start_token: int
    end_token: int
    slots: tuple[int, ...]
    is_last: bool


class Decode(Struct, frozen=True, kw_only=True, gc=False):
    """Greedily produce up to `token_count` more tokens after the first one; stop at the end-of-text token."""

    request_id: int
    start_token: int  # position of the first generated token
    token_count: int
    slots: tuple[int, ...]


class Publish(Struct, frozen=True, kw_only=True, gc=False):
    message: PoolMessage


class ReportFirstToken(Struct, frozen=True, kw_only=True, gc=False):
    request_id: int


class ReportCompleted(Struct, frozen=True, kw_only=True, gc=False):
    request_id: int
    outcome: Outcome


class ReturnPlan(Struct, frozen=True, kw_only=True, gc=False):
    request_id: int
    reason: str


class ReportLink(Struct, frozen=True, kw_only=True, gc=False):
    source: int
    bytes_moved: int
    elapsed_us: int


class AcknowledgeDirectory(Struct, frozen=True, kw_only=True, gc=False):
    revision: int


WorkerEffect = (
    Fetch
    | CancelFetch
    | SendBlocks
    | RefuseFetch
    | Prefill
    | Decode
    | Publish
    | ReportFirstToken
    | ReportCompleted
    | ReturnPlan
    | ReportLink
    | ReportPrefetch
    | ReportKept
    | AcknowledgeDirectory
)
