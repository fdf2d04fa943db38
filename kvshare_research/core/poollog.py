"""What a worker publishes about its pool: a log that only it writes. Re-exported by `messages.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksStored:
    """`hashes` are now readable on this node in `tier`; `parent` is the hash before the first, or None at a root."""

    tier: int
    parent: bytes | None
    hashes: tuple[bytes, ...]
    scope_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRemoved:
    """One copy of each of `hashes` is gone from this node and tier."""

    tier: int
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCleared:
    """Nothing is left on this node in `tier` (None: in any tier)."""

    tier: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Nothing changed; `head_seq` lets the reader notice a lost last event."""

    head_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything this node holds as of its seq: (tier, hash, parent hash or None, copies)."""

    as_of_seq: int
    rows: tuple[tuple[int, bytes, bytes | None, int], ...]


PoolEvent = BlocksStored | BlocksRemoved | TierCleared | Heartbeat | Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMessage:
    """An entry of a worker's log: only that worker writes it; seq counts from 1 within an incarnation."""

    node: int
    incarnation: int
    seq: int
    body: PoolEvent
