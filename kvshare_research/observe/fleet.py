"""What a watched fleet holds, and what sharing between its nodes would have saved. Pure: time is what frames say.

Engines name blocks by hashes of their own making, with seeds and block sizes that may differ. So blocks are named anew
from their tokens, in units of `unit_tokens`: equal prompts meet whatever engine holds them. A publisher's own hash is
only a handle that leads to those names. Blocks told without their tokens are named from that hash: they meet only where
publishers hash alike, and else count as different.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvshare_research.core.nouns import Chain
from kvshare_research.core.ports import IndexStore
from kvshare_research.events.frames import Batch, Cleared, Event, Removed, Stored
from kvshare_research.guard.keys import KeyRing
from kvshare_research.guard.namespace import ModelSpace, Namespace
from kvshare_research.index.units import UNIT_ROOT, block_ends, unit_hashes

ORPHANS_MAX = 10_000  # events per node that wait for a parent nobody has told yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a saved block is worth: computing it against fetching it."""

    block_bytes: int
    prefill_us_per_block: float
    rtt_us: int
    rate_bits_per_s: float

    def saving_us(self, block_count: int) -> float:
        """Time won by fetching a run of blocks instead of computing it; 0 if computing is faster."""
        fetch_us = self.rtt_us + block_count * self.block_bytes * 8 / self.rate_bits_per_s * 1e6
        return max(0.0, block_count * self.prefill_us_per_block - fetch_us)


@dataclass(slots=True)
class Tally:
    """Counts of one tenant (the empty name: no tenant known)."""

    stored_blocks: int = 0
    duplicate_blocks: int = 0  # computed here although another node held the whole prefix
    saved_us: float = 0.0


@dataclass(slots=True)
class _Handle:
    """Where an engine's hash leads: the names of its units, the block before it, and copies per tier."""

    names: tuple[bytes, ...]
    above: _Handle | None
    tenant: str
    tiers: Counter[int]

    def chain(self) -> bytes:
        """All names from the first block to this one."""
        parts: list[bytes] = []
        at: _Handle | None = self
        while at:
            parts.extend(reversed(at.names))
            at = at.above
        return b"".join(reversed(parts))


@dataclass(slots=True)
class _Node:
    handles: dict[int, _Handle] = field(default_factory=dict)
    orphans: dict[int, list[Stored]] = field(default_factory=lambda: defaultdict(list))
    orphan_count: int = 0
    head_s: float = 0.0  # time of the last event
    lag_s: float = 0.0  # from its publication to its application
    model: str = ""


class Fleet:
    """Applies decoded batches to an index store and keeps the account. `counters` has every anomaly by name."""

    def __init__(self, store: IndexStore, node_count: int, unit_tokens: int, prices: Prices, ring: KeyRing) -> None:
        self.store, self.prices, self.unit_tokens = store, prices, unit_tokens
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.counters: Counter[str] = Counter()
        self.nodes = [_Node() for _ in range(node_count)]
        self._ring = ring

    def apply(self, node: int, batch: Batch, now_s: float, model: str = "") -> None:
        """All that can be meant of the batch is applied; the rest is counted. Blocks of two models never meet."""
        self.nodes[node].model = model
        self.counters.update(batch.problems)
        self.nodes[node].head_s = batch.time_s
        self.nodes[node].lag_s = max(0.0, now_s - batch.time_s)
        for event in batch.events:
            self._event(node, event)

    def forget(self, node: int) -> None:
        """Nothing is believed of the node: its engine has restarted, or too much of its stream is lost."""
        self.store.clear(node, None)
        self.nodes[node] = _Node()

    def _event(self, node: int, event: Event) -> None:
        if isinstance(event, Stored):
            self._stored(node, event)
        elif isinstance(event, Removed):
            self._removed(node, event)
        elif isinstance(event, Cleared):
            self.counters["cleared"] += 1
            self.store.clear(node, event.tier)
            handles = self.nodes[node].handles
            for name, handle in list(handles.items()):
                for tier in list(handle.tiers) if event.tier is None else [event.tier]:
                    del handle.tiers[tier]
                if not handle.tiers:
                    del handles[name]

    def _stored(self, node: int, event: Stored) -> None:
        """The event and all that waited for it."""
        todo = [event]
        while todo:
            event = todo.pop()
            if self._placed(node, event):
                for block in event.hashes:
                    waiting = self.nodes[node].orphans.pop(block, [])
                    self.nodes[node].orphan_count -= len(waiting)
                    todo.extend(waiting)
                    if waiting:
                        self.counters["grafted"] += len(waiting)

    def _placed(self, node: int, event: Stored) -> bool:
        view = self.nodes[node]
        if event.block_tokens % self.unit_tokens:
            self.counters[f"block size {event.block_tokens} is no multiple of {self.unit_tokens}"] += 1
            return False
        if not event.tokens:
            self.counters["stored without its tokens"] += 1
        elif len(event.tokens) != len(event.hashes) * event.block_tokens:
            self.counters["stored with other tokens than it has blocks"] += 1
            return False
        above = None if event.parent is None else view.handles.get(event.parent)
        if event.parent is not None and above is None:
            if view.orphan_count < ORPHANS_MAX:
                view.orphans[event.parent].append(event)
                view.orphan_count += 1
            self.counters["parent unknown"] += 1
            return False
        self._name(node, event, above)
        return True

    def _name(self, node: int, event: Stored, above: _Handle | None) -> None:
        tenant = above.tenant if above else event.tenant
        model = f"observed {self.nodes[node].model}"
        space = ModelSpace(model=model, adapter=event.lora, dtype="", block_tokens=self.unit_tokens)
        key = self._ring.key(Namespace(scope=("observed", tenant), space=space).encode())
        if event.tokens:
            tokens = np.array(event.tokens, np.uint32)
            ends = block_ends(len(tokens), self.unit_tokens)
            joined = b"".join(unit_hashes(key, tokens, ends, above.names[-1] if above else UNIT_ROOT))
        else:
            units = range(event.block_tokens // self.unit_tokens)
            joined = b"".join(_opaque(key, block, unit) for block in event.hashes for unit in units)
        names = tuple(joined[i : i + 16] for i in range(0, len(joined), 16))
        self._account(node, tenant, above.chain() if above else b"", joined)
        self.store.store(node, event.tier, above.names[-1] if above else None, names)
        per_block = event.block_tokens // self.unit_tokens
        for at, block in enumerate(event.hashes):
            handle = self.nodes[node].handles.get(block)
            if handle is None:
                handle = _Handle(names[at * per_block : (at + 1) * per_block], above, tenant, Counter())
                self.nodes[node].handles[block] = handle
            handle.tiers[event.tier] += 1
            above = handle

    def _account(self, node: int, tenant: str, start: bytes, names: bytes) -> None:
        """How much of a run that was just computed here stood whole on another node."""
        before, count = len(start) // 16, len(names) // 16
        chain = Chain(hashes=start + names, scope_ends=((0, before + count),), block_tokens=self.unit_tokens)
        runs = self.store.match(chain).runs
        here = max((r.block_count for r in runs if r.node == node), default=0)
        there = max((r.block_count for r in runs if r.node != node), default=0)
        tally = self.tallies[tenant]
        tally.stored_blocks += count
        fetchable = max(0, there - max(here, before))
        tally.duplicate_blocks += fetchable
        tally.saved_us += self.prices.saving_us(fetchable) if fetchable else 0.0

    def _removed(self, node: int, event: Removed) -> None:
        handles = self.nodes[node].handles
        for block in event.hashes:
            handle = handles.get(block)
            if handle is None or not handle.tiers[event.tier]:
                self.counters["unknown block removed"] += 1
                continue
            self.store.remove(node, event.tier, handle.names)
            handle.tiers[event.tier] -= 1
            if not +handle.tiers:
                del handles[block]

    def report(self) -> dict[str, Any]:
        """The account so far: per tenant and per node; a plain tree for JSON."""
        held = [len({name for h in n.handles.values() for name in h.names}) for n in self.nodes]
        distinct = len({name for n in self.nodes for h in n.handles.values() for name in h.names})
        return {
            "held_blocks": held,
            "distinct_blocks": distinct,
            "copies_per_block": sum(held) / distinct if distinct else 0.0,
            "tenants": {
                tenant or "(not told)": {
                    "stored_blocks": t.stored_blocks,
                    "duplicate_blocks": t.duplicate_blocks,
                    "duplicate_share": t.duplicate_blocks / t.stored_blocks if t.stored_blocks else 0.0,
                    "sharing_would_have_saved_s": t.saved_us / 1e6,
                }
                for tenant, t in sorted(self.tallies.items())
            },
            "lag_s": [n.lag_s for n in self.nodes],
            "waiting_for_parents": [n.orphan_count for n in self.nodes],
            "anomalies": dict(self.counters),
        }


def _opaque(key: bytes, block: int, unit: int) -> bytes:
    """The name of a unit of a block of which only the publisher's hash is known."""
    return hashlib.blake2b(block.to_bytes(8) + unit.to_bytes(4), key=key, digest_size=16).digest()
