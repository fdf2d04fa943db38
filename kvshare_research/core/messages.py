"""Events (it happened) and effects (please do) of the router and the worker. All frozen, all serialisable.

A driver hands events to `handle(event, now_us)` and performs the effects it gets back; nothing else passes.
"""

from __future__ import annotations

from dataclasses import dataclass

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
@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    request: Request
    chain: Chain


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChanged:
    message: PoolMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReported:
    """A worker's own word on its load, piggybacked on its messages."""

    node: int
    used_blocks: int
    capacity_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    request_id: int
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The worker's account of a request; the router adds its own times and records it."""

    request_id: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRefused:
    """The worker cannot follow the plan (typed reason); it returns once to the router."""

    request_id: int
    node: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasured:
    """A transfer (or probe) over source -> reader took this long; `bytes_moved` 0 means a bare round trip."""

    source: int
    reader: int
    bytes_moved: int
    elapsed_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    node: int
    incarnation: int
    capacity_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryChanged:
    directory: Directory


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryAcknowledged:
    node: int
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
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
@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Send the request (its tokens are with the driver) and its plan to `plan.executor`."""

    request: Request
    chain: Chain
    plan: Plan
    reader: Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class AskSnapshot:
    """Ask a worker for what comes after `after_seq` of `incarnation`, or for a snapshot; see `core/journal.py`."""

    node: int
    incarnation: int = 0
    after_seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    request_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The request has ended. Nobody is told before `release_us`; 0: at once."""

    outcome: Outcome
    release_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDirectory:
    node: int
    directory: Directory


RouterEffect = Dispatch | AskSnapshot | Reject | Record | SendDirectory | SendPrefetch | SendKeep


# ------------------------------------------------------------- worker: events
@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    request: Request
    chain: Chain
    plan: Plan
    reader: Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAsked:
    """Another worker wants blocks: the holder decides, with its own tables, at its own clock."""

    fetch_id: int  # unique per asking node
    asker: int
    reader: Reader
    hashes: tuple[bytes, ...]
    revision: int  # the asker's directory revision
    background: bool = False  # a prefetch: what requests need goes first
    marks: bytes = b""  # of these blocks, as in `Chain`


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSent:
    """The driver has sent the last byte (or given up): the pins of this fetch end."""

    fetch_id: int
    asker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLanded:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """Refused by the holder, or past its deadline: the reader computes instead."""

    fetch_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillDone:
    """Tokens [.., end_token) of the prompt are in the pool; `first_token` when this was the last stretch."""

    request_id: int
    end_token: int
    elapsed_us: int
    merge_us: int
    first_token: int | None
    logit_fingerprint: tuple[float, ...] = ()
    attention: tuple[float, ...] = ()  # mass on each block up to `end_token`, where the engine reports it


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeDone:
    request_id: int
    tokens: tuple[int, ...]
    elapsed_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFailed:
    request_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAsked:
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
@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelFetch:
    fetch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBlocks:
    """The rule said yes: send these slots (pinned until FetchSent). What else is here travels with the bytes."""

    fetch_id: int
    asker: int
    slots: tuple[int, ...]
    tickets: tuple[Ticket, ...]
    origins: tuple[int, ...]
    marks: bytes = b""
    background: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseFetch:
    fetch_id: int
    asker: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Compute prompt tokens [start_token, end_token) into `slots` (one per block of the whole sequence)."""

    request_id: int
    start_token: int
    end_token: int
    slots: tuple[int, ...]
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """Greedily produce up to `token_count` more tokens after the first one; stop at the end-of-text token."""

    request_id: int
    start_token: int  # position of the first generated token
    token_count: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    message: PoolMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFirstToken:
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCompleted:
    request_id: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnPlan:
    request_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLink:
    source: int
    bytes_moved: int
    elapsed_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeDirectory:
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
