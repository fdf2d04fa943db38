"""What a worker publishes about its pool: a log that only it writes. Re-exported by `messages.py`."""

from __future__ import annotations

from msgspec import Struct


class BlocksStored(Struct, frozen=True, kw_only=True, gc=False):
    """`hashes` are now readable on this node in `tier`; `parent` is the hash before the first, or None at a root."""

    tier: int
    parent: bytes | None
    hashes: tuple[bytes, ...]
    scope_id: int = 0


class BlocksRemoved(Struct, frozen=True, kw_only=True, gc=False):
    """One copy of each of `hashes` is gone from this node and tier."""

    tier: int
    hashes: tuple[bytes, ...]


class TierCleared(Struct, frozen=True, kw_only=True, gc=False):
    """Nothing is left on this node in `tier` (None: in any tier)."""

    tier: int | None


class Heartbeat(Struct, frozen=True, kw_only=True, gc=False):
    """Nothing changed; `head_seq` lets the reader notice a lost last event."""

    head_seq: int


class Snapshot(Struct, frozen=True, kw_only=True, gc=False):
    """Everything this node holds as of its seq: (tier, hash, parent hash or None, copies)."""

    as_of_seq: int
    rows: tuple[tuple[int, bytes, bytes | None, int], ...]


PoolEvent = BlocksStored | BlocksRemoved | TierCleared | Heartbeat | Snapshot


class PoolMessage(Struct, frozen=True, kw_only=True, gc=False):
    """An entry of a worker's log: only that worker writes it; seq counts from 1 within an incarnation."""

    node: int
    incarnation: int
    seq: int
    body: PoolEvent
