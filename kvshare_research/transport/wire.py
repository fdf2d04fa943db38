"""What bytes on the wire mean: a version byte, then msgpack. Start at `Envelope`; blocks are framed in `frames.py`.

Every envelope names the case it belongs to, so that a message of an earlier case can never reach a state
machine of a later one. Core events travel as (kind, body): a kind is the class name in `core/messages.py`.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
from msgspec import Raw, Struct

from kvshare_research.core import messages as m
from kvshare_research.core.errors import RemoteError

WIRE_VERSION: Final = 1

_POOL_BODIES: Final[dict[str, type]] = {
    t.__name__: t for t in (m.BlocksStored, m.BlocksRemoved, m.TierCleared, m.Heartbeat, m.Snapshot)
}


class _PoolRow(Struct, array_like=True, frozen=True):
    """A PoolMessage whose body is tagged by its kind (msgspec has no unions of plain dataclasses)."""

    node: int
    incarnation: int
    seq: int
    kind: str
    body: Raw


_encoder = msgspec.msgpack.Encoder()
_pool_decoder = msgspec.msgpack.Decoder(_PoolRow)
_HOLDS_POOL_MESSAGE: Final = (m.PoolChanged, m.Publish)
_MODULES: Final = (m.__name__, m.PrefetchAsked.__module__)
_PLAIN: Final[dict[str, msgspec.msgpack.Decoder[Any]]] = {
    t.__name__: msgspec.msgpack.Decoder(t)
    for t in vars(m).values()
    if isinstance(t, type) and t.__module__ in _MODULES and t not in (m.PoolMessage, *_HOLDS_POOL_MESSAGE)
}


def encode_core(item: object) -> bytes:
    """The body of an event or effect of `core/messages.py`; its kind is `type(item).__name__`."""
    if isinstance(item, _HOLDS_POOL_MESSAGE):
        msg = item.message
        body = Raw(_encoder.encode(msg.body))
        return _encoder.encode(_PoolRow(msg.node, msg.incarnation, msg.seq, type(msg.body).__name__, body))
    return _encoder.encode(item)


def decode_core(kind: str, body: Raw | bytes) -> Any:
    """The event or effect; raises RemoteError where kind or body is none."""
    try:
        if kind in ("PoolChanged", "Publish"):
            row = _pool_decoder.decode(body)
            inner = cast("m.PoolEvent", msgspec.msgpack.decode(row.body, type=_POOL_BODIES[row.kind]))
            message = m.PoolMessage(node=row.node, incarnation=row.incarnation, seq=row.seq, body=inner)
            return m.PoolChanged(message=message) if kind == "PoolChanged" else m.Publish(message=message)
        return _PLAIN[kind].decode(body)
    except (KeyError, msgspec.MsgspecError) as error:
        raise RemoteError(f"cannot read a `{kind}` from the wire: {error}; do all ranks run one version?") from error


# ------------------------------------------------------------- messages between drivers
class _Wire(Struct, array_like=True, frozen=True, tag=True):
    """Base: an array that starts with the class name."""


class Deliver(_Wire, frozen=True):
    """A core event for the state machine of the receiver; `tokens` (uint32) only with a Dispatched."""

    kind: str
    body: Raw
    tokens: bytes = b""

    @classmethod
    def of(cls, event: object, tokens: bytes = b"") -> Deliver:
        return cls(type(event).__name__, Raw(encode_core(event)), tokens)

    def event(self) -> Any:
        return decode_core(self.kind, self.body)


class FetchRefused(_Wire, frozen=True):
    """The holder will not send (or stopped sending) this fetch."""

    fetch_id: int
    reason: str


class FetchCancelled(_Wire, frozen=True):
    """The asker no longer wants this fetch."""

    fetch_id: int


class LoadEngine(_Wire, frozen=True):
    """Router to worker: load the engine this configuration describes."""

    config: dict[str, Any]


class EngineReady(_Wire, frozen=True):
    """What was loaded. Workers with equal fingerprints may exchange blocks."""

    node: int
    capacity_blocks: int
    block_bytes: int
    layer_count: int
    model: str
    fingerprint: str


class Reset(_Wire, frozen=True):
    """Forget the last case and build a fresh state machine from `config`."""

    case: int
    config: dict[str, Any]
    record: bool


class ResetDone(_Wire, frozen=True):
    node: int
    case: int


class ReportAsked(_Wire, frozen=True):
    """Router to worker: hand over counters and recorded inputs of this case."""


class Reported(_Wire, frozen=True):
    node: int
    counters: dict[str, int]
    log: bytes


class MeasurePrefill(_Wire, frozen=True):
    """Time prefill of [start, end) for each point, `repeats` times each, with random tokens of this seed."""

    points: tuple[tuple[int, int], ...]
    repeats: int
    seed: int


class MeasureDecode(_Wire, frozen=True):
    """Time decoding so many tokens after a context, for each point (context tokens, tokens), `repeats` times each."""

    points: tuple[tuple[int, int], ...]
    repeats: int
    seed: int


class MeasureLink(_Wire, frozen=True):
    """Time `repeats` answers of `payload_bytes` (0: bare round trips) from node `source`."""

    source: int
    payload_bytes: int
    repeats: int


class Measured(_Wire, frozen=True):
    """Raw timings in us, one row per point or repeat."""

    node: int
    rows: tuple[tuple[int, ...], ...]


class ProbeAsked(_Wire, frozen=True):
    """Worker to worker: answer with this many bytes, in messages no larger than a frame of blocks."""

    probe: int
    payload_bytes: int


class ProbeAnswered(_Wire, frozen=True):
    probe: int
    payload: bytes


class NodeGone(_Wire, frozen=True):
    """Router to worker: this node is taken for dead; nothing is sent to it or awaited from it any more."""

    node: int


class Finish(_Wire, frozen=True):
    """The job is over; leave with this exit code after answering Bye."""

    code: int


class Bye(_Wire, frozen=True):
    node: int


class RankFailed(_Wire, frozen=True):
    """A rank cannot go on: what happened and what to do, in one line each."""

    rank: int
    what: str
    advice: str


Message = (
    Deliver
    | FetchRefused
    | FetchCancelled
    | LoadEngine
    | EngineReady
    | Reset
    | ResetDone
    | ReportAsked
    | Reported
    | MeasurePrefill
    | MeasureDecode
    | MeasureLink
    | Measured
    | ProbeAsked
    | ProbeAnswered
    | NodeGone
    | Finish
    | Bye
    | RankFailed
)


class Envelope(Struct, array_like=True, frozen=True):
    """A message and the case it belongs to (0: to no case)."""

    case: int
    message: Message


_envelope_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(case: int, message: Message) -> bytes:
    """The message as bytes for the control channel."""
    return bytes((WIRE_VERSION,)) + _encoder.encode(Envelope(case, message))


def decode(data: bytes | bytearray | memoryview) -> Envelope:
    """The message; raises RemoteError where the bytes are none or are of another version."""
    view = memoryview(data)
    if len(view) == 0 or view[0] != WIRE_VERSION:
        given = view[0] if len(view) else "nothing"
        raise RemoteError(f"wire version `{given}`, expected `{WIRE_VERSION}`: start all ranks from one installation")
    try:
        return _envelope_decoder.decode(view[1:])
    except msgspec.MsgspecError as error:
        raise RemoteError(f"unreadable control message of {len(view)} bytes: {error}") from error
