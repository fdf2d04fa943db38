"""Who asks what in `privacy_prefetch`, the fleet that serves it, and what its prefetches were worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from experiments.privacy_ttft.__main__ import BLOCK_BYTES, BLOCK_TOKENS, NODES, fleet
from kvshare_research.core import messages as m
from kvshare_research.core.directory import Directory
from kvshare_research.core.foresight import Foresight, prefix_blocks
from kvshare_research.core.ledger import Ledger as Pool
from kvshare_research.core.nouns import Action, Chain, Request, Segment
from kvshare_research.core.ports import Prefetch
from kvshare_research.core.rights import EVERYBODY, TENANT, Scope
from kvshare_research.core.worker import Worker
from kvshare_research.driver.simulator import Simulator
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.namespace import ModelSpace
from kvshare_research.metrics.prefetching import Issued, score
from kvshare_research.prefetch.oracle import Oracle
from kvshare_research.privacy.sessions import make_sessions
from kvshare_research.retention.lru import LruRetention
from kvshare_research.study.prompts import Hasher

NAMES, STEPS, TAIL_TOKENS, TAUGHT, HOME = 48, 16, 40, 4_000, 0.8
PRICE_PS_PER_BYTE = 10
LINK_PS_PER_BYTE = 8_000  # 1 Gbit/s
Arrivals = Sequence[tuple[Request, Chain]]


def directory_of(tenants: int) -> Directory:
    """So many tenants and no users: what is asked for is public, the tail is the tenant's."""
    scopes = (EVERYBODY, *(Scope(TENANT, i + 1) for i in range(tenants)))
    return Layered().directory(Directory(tenants=tuple(f"t{i}" for i in range(tenants)), groups=(), scopes=scopes))


def asked(directory: Directory, seed: int, gap_us: int) -> tuple[Arrivals, tuple[bytes, ...]]:
    """The arrivals, `gap_us` apart in the mean, at random; and the names of all prefixes."""
    rng = np.random.default_rng(seed + 1)
    tenants = len(directory.tenants)
    space = ModelSpace(model="m", dtype="fp32", block_tokens=BLOCK_TOKENS)
    hasher = Hasher(tenancy=Layered(), directory=directory, ring=KeyRing(RootSecret.from_seed(seed)), space=space)
    blocks = np.clip(rng.lognormal(3.0, 0.6, NAMES).astype(int), 4, 60)
    sessions = make_sessions(TAUGHT + tenants, NAMES, STEPS, seed)[TAUGHT:]
    homes = rng.integers(NODES, size=tenants)
    rows: list[tuple[Request, Chain]] = []
    names: dict[int, bytes] = {}
    now_us = 1.0
    for step in range(STEPS):
        for tenant in rng.permutation(tenants).tolist():
            name = int(sessions[tenant, step])
            front = np.arange(blocks[name] * BLOCK_TOKENS, dtype=np.uint32) + 10_000 * name
            tokens = np.concatenate([front, rng.integers(1 << 20, 1 << 21, TAIL_TOKENS).astype(np.uint32)])
            segments = (
                Segment(scope_id=0, token_count=len(front)),
                Segment(scope_id=directory.scope_id(Scope(TENANT, tenant + 1)), token_count=TAIL_TOKENS),
            )
            node = int(homes[tenant]) if rng.random() < HOME else int(rng.integers(NODES))
            now_us += rng.exponential(gap_us)
            request = Request(
                request_id=len(rows) + 1, tenant_id=tenant + 1, segments=segments, output_tokens_max=1, ingress=node,
                executor=node, arrival_us=int(now_us), application=f"step {name}",
            )  # fmt: skip
            prompt = hasher.prompt(request, tokens, warmup=False)
            names[name] = prompt.chain.block_hash(prefix_blocks(prompt.request, prompt.chain) - 1)
            rows.append((prompt.request, prompt.chain))
    return rows, tuple(names.get(i, i.to_bytes(16, "big")) for i in range(NAMES))


@dataclass(slots=True)
class Play:
    """A fleet that served the arrivals, and what it prefetched."""

    sim: Simulator
    issued: list[Issued] = field(default_factory=list)
    landed: set[int] = field(default_factory=set)
    polluted_blocks: int = 0  # evicted while a prefetched block that nobody had used was there or on its way

    @property
    def used_blocks(self) -> int:
        """Prefetched blocks that a request found in time."""
        return sum(w.prefetching.counters["used_blocks"] for w in self.sim.workers)

    @property
    def prefetched_bytes(self) -> int:
        """All bytes on links but those that requests pulled."""
        return self.sim.moved_bytes - sum(o.pulled_bytes for o in self.sim.outcomes)


def played(directory: Directory, rows: Arrivals, policy: Prefetch | None, capacity_blocks: int) -> Play:
    """Every request is served at its own node, from what is resident, pulled or computed."""
    sim = fleet(directory, ps_per_byte=LINK_PS_PER_BYTE)
    actions = frozenset((Action.RECOMPUTE, Action.RESIDENT, Action.PULL))
    sim.router.policy = replace(sim.router.policy, actions=actions)
    for worker in sim.workers:
        pool = Pool(capacity_blocks=capacity_blocks, accounts=(), retention=LruRetention())
        made = type(worker)(node=worker.node, incarnation=1, policy=worker.policy, ledger=pool, directory=directory)
        sim.workers[worker.node] = made
    play = Play(sim)
    if policy is not None:
        sim.router.foresight = Foresight(policy)
        _watch(play)
        if isinstance(policy, Oracle):
            policy.tell(sim.router.foresight.state, rows)
    for request, chain in rows:
        sim.inject(request, chain)
    sim.run()
    return play


def _watch(play: Play) -> None:
    """What is issued and what lands is noted, as it passes the router."""
    inner = play.sim.router.handle

    def handle(event: m.RouterEvent, now_us: int) -> tuple[m.RouterEffect, ...]:
        if isinstance(event, m.PrefetchEnded) and event.landed_blocks:
            play.landed.add(event.prefetch_id)
        effects = inner(event, now_us)
        play.issued.extend(Issued.of(e, now_us) for e in effects if isinstance(e, m.SendPrefetch))
        return effects

    play.sim.router.handle = handle  # type: ignore[method-assign]
    for worker in play.sim.workers:
        worker.handle = _watched(play, worker)  # type: ignore[method-assign]


def _watched(play: Play, worker: Worker) -> Callable[[m.WorkerEvent, int], tuple[m.WorkerEffect, ...]]:
    """The worker's `handle`, with what it evicts beside unused prefetched blocks counted."""
    inner = worker.handle

    def handle(event: m.WorkerEvent, now_us: int) -> tuple[m.WorkerEffect, ...]:
        before = worker.ledger.evicted_blocks
        effects = inner(event, now_us)
        if worker.prefetching.unused_blocks or worker.prefetching.flights:
            play.polluted_blocks += worker.ledger.evicted_blocks - before
        return effects

    return handle


def saved_ms(play: Play, plain: Play) -> np.ndarray:
    """Of each request, by arrival, the TTFT saved against `plain`."""
    ttft_us = {o.request_id: o.ttft_us for o in play.sim.outcomes}
    rows = sorted(plain.sim.outcomes, key=lambda o: o.request_id)
    return np.array([o.ttft_us - ttft_us[o.request_id] for o in rows]) / 1000


def measured(play: Play, plain: Play, chains: dict[int, Chain]) -> dict[str, float]:
    """The metrics, by blocks (all are of one size). Coverage is of the blocks that were cold without prefetch;
    `reordered` are found on their node without prefetch and not with it, for whatever reason."""
    before = {o.request_id: o for o in plain.sim.outcomes}
    after = {o.request_id: o for o in play.sim.outcomes}
    assert before.keys() == after.keys()
    cold = sum(o.prompt_tokens - TAIL_TOKENS - o.resident_tokens for o in before.values()) / BLOCK_TOKENS
    reordered = sum(max(0, o.resident_tokens - after[i].resident_tokens) for i, o in before.items()) / BLOCK_TOKENS
    ttft = float(np.mean([o.ttft_us for o in after.values()])) / 1000
    moved, used = play.prefetched_bytes, play.used_blocks * BLOCK_BYTES
    served = [(o, chains[i]) for i, o in after.items()]
    found = score(play.issued, frozenset(play.landed), served, BLOCK_TOKENS)
    return {
        "TTFT ms": ttft,
        "price ms": (moved - used) * PRICE_PS_PER_BYTE / 1e9 / len(after),
        "moved MiB": moved / (1 << 20),
        "coverage": play.used_blocks / cold,
        "accuracy": found.accuracy,
        "timeliness": found.timeliness,
        "destination": found.destination,
        "waste": 1 - used / moved if moved else 0.0,
        "pollution": play.polluted_blocks,
        "reordered": reordered,
        "issued": found.issued,
    }


COMMON: dict[str, Any] = {
    "price_ps_per_byte": PRICE_PS_PER_BYTE,
    "inflight_bytes_max": 1 << 28,
    "horizon_us": 30_000_000,
}
