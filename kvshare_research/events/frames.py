"""The bytes of KV events as engines publish them, decoded to one form, and our own events encoded the same way.

Two generations are in use: positional arrays (vLLM until mid 2026, SGLang) and tagged maps (vLLM since). Both travel as
`[time, [event, ...], data-parallel rank or nil]` in msgpack. A third schema, of Mooncake's RFC 1527, tags maps by
`event_type` and names a tenant. Unknown fields are ignored; unknown types and malformed events are counted, and the
rest of their batch is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvshare_research.core.errors import RemoteError

HASH_MASK = (1 << 64) - 1
SEQ_BYTES = 8
END_SEQ = HASH_MASK  # the sequence number of the marker that ends a replay
_FIELDS = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
        *("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
_ALIASES = {"stored": "BlockStored", "removed": "BlockRemoved", "cleared": "AllBlocksCleared"}
_TIERS = {"GPU": 0, "DEVICE": 0, "CPU": 1, "CPU_PINNED": 1, "HOST": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Blocks of one chain, in order; `hashes` are the engine's own, taken to 64 bits. `tenant` is empty if not told."""

    hashes: tuple[int, ...]
    parent: int | None
    tokens: tuple[int, ...]
    block_tokens: int
    tier: int = 0
    tenant: str = ""
    lora: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    hashes: tuple[int, ...]
    tier: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Everything is gone, in one tier if it is named."""

    tier: int | None = None


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One frame: what could be read of it, and what could not, by kind."""

    time_s: float
    events: tuple[Event, ...]
    rank: int | None = None
    problems: Counter[str] = field(default_factory=Counter)


def decode(payload: bytes) -> Batch:
    """What a frame says. Raises RemoteError when it is no batch at all (truncated, not msgpack, another shape)."""
    try:
        frame = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteError(f"a frame of {len(payload)} bytes is not msgpack: {error}") from None
    if not isinstance(frame, list) or len(frame) < 2 or not isinstance(frame[1], list):
        raise RemoteError(f"a frame is no batch of events: `{str(frame)[:60]}`")
    problems: Counter[str] = Counter()
    events = []
    for item in frame[1]:
        try:
            event = _event(item)
        except (TypeError, ValueError, KeyError, IndexError, OverflowError):
            problems["malformed event"] += 1
            continue
        if isinstance(event, str):
            problems[f"unknown event type `{event}`"] += 1
        else:
            events.append(event)
    rank = frame[2] if len(frame) > 2 and isinstance(frame[2], int) else None
    time_s = float(frame[0]) if isinstance(frame[0], int | float) else 0.0
    return Batch(time_s=time_s, events=tuple(events), rank=rank, problems=problems)


def hash64(value: Any) -> int:
    """An engine's block hash to 64 bits: the last 8 bytes of a digest, or two's complement of a signed number."""
    if isinstance(value, bytes):
        if len(value) < 8:
            raise ValueError(value)
        return int.from_bytes(value[-8:], "big")
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return value & HASH_MASK


def _event(item: Any) -> Event | str:
    if isinstance(item, Mapping):
        tag = str(item["type"] if "type" in item else item["event_type"])
        fields = dict(item)
    else:
        tag, *values = item
        fields = dict(zip(_FIELDS.get(tag, ()), values, strict=False))
    tag = _ALIASES.get(tag, tag)
    medium = fields.get("medium")
    tier = 0 if medium is None else _TIERS.get(str(medium).upper(), 2)
    if tag == "AllBlocksCleared":
        return Cleared(tier=None if medium is None else tier)
    if tag not in _FIELDS:
        return tag
    hashes = tuple(hash64(h) for h in fields.get("block_hashes", fields.get("seq_hashes")) or ())
    if tag == "BlockRemoved":
        return Removed(hashes=hashes, tier=tier)
    parent = fields.get("parent_block_hash", fields.get("parent_hash"))
    tokens = fields.get("token_ids") or ()
    block_tokens = int(fields["block_size"])
    if block_tokens < 1 or not all(isinstance(t, int) and 0 <= t < 1 << 32 for t in tokens):
        raise ValueError(item)
    return Stored(
        hashes=hashes,
        parent=None if parent is None else hash64(parent),
        tokens=tuple(tokens),
        block_tokens=block_tokens,
        tier=tier,
        tenant=str(fields.get("tenant_id") or _salt(fields.get("extra_keys"), fields.get("lora_name"))),
        lora=str(fields.get("lora_name") or fields.get("lora_id") or ""),
    )


def _salt(extra_keys: Any, lora_name: Any) -> str:
    """The cache salt, which engines put among the extra keys of the first block only, without a tag."""
    first = extra_keys[0] if isinstance(extra_keys, list) and extra_keys else None
    words = [w for w in (first if isinstance(first, list) else [first]) if isinstance(w, str) and w != lora_name]
    return words[-1] if words else ""


def encode(time_s: float, events: Sequence[Event], rank: int | None = 0, generation: str = "map") -> bytes:
    """The frame of these events in the `map` or the `array` generation; `decode` gives them back."""
    bodies = [_body(e, generation == "array") for e in events]
    return msgspec.msgpack.encode([time_s, bodies, rank])


def _body(event: Event, positional: bool) -> Any:
    medium = None if isinstance(event, Cleared) and event.tier is None else _medium(event.tier)
    if isinstance(event, Stored):
        extra = [[event.tenant]] + [None] * (len(event.hashes) - 1) if event.tenant else None
        values = [event.hashes, event.parent, event.tokens, event.block_tokens, None, medium, event.lora or None]
        if positional:
            return ["BlockStored", *values, extra, None]
        named = {"type": "BlockStored", **dict(zip(_FIELDS["BlockStored"], values, strict=False))}
        return {**named, "extra_keys": extra} if extra else named
    if isinstance(event, Removed):
        return (
            ["BlockRemoved", event.hashes, medium, None]
            if positional
            else {"type": "BlockRemoved", "block_hashes": event.hashes, "medium": medium}
        )
    if medium is None:
        return ["AllBlocksCleared"] if positional else {"type": "AllBlocksCleared"}
    return {"type": "AllBlocksCleared", "medium": medium}  # the array generation has no place for a tier


def _medium(tier: int | None) -> str:
    return ("GPU", "CPU", "DISK")[min(tier or 0, 2)]


def seq_frame(seq: int) -> bytes:
    """A sequence number as it travels: 8 bytes, big-endian."""
    return (seq & HASH_MASK).to_bytes(SEQ_BYTES, "big")
