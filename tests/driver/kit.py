"""The assembly of the test jobs: the real machines and the tiny model, a cost that pulls whenever it can, planted faults."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvshare_research.core.directory import Directory
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import Action, Chain, LinkRow, QuoteTable, Request, Segment
from kvshare_research.core.poollog import BlocksStored, Heartbeat, PoolMessage
from kvshare_research.core.ports import Cost, Links, QuoteInput, Selector
from kvshare_research.core.rights import GROUP, TENANT, Scope
from kvshare_research.core.router import Router, RouterPolicy
from kvshare_research.core.running import WorkerPolicy
from kvshare_research.core.shaping import Shape, ShapeKind
from kvshare_research.core.worker import Worker
from kvshare_research.driver.assembly import Config, Place
from kvshare_research.engine.base import Engine
from kvshare_research.engine.tiny import Tiny
from kvshare_research.events.publish import Events, Tap
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace, chain
from kvshare_research.index.reference import ReferenceIndex
from kvshare_research.prefetch.ppm import Ppm
from kvshare_research.retention.lru import LruRetention
from kvshare_research.schedule.fcfs import FcfsSchedule
from kvshare_research.testing.tables import table_of
from kvshare_research.transport import wire
from kvshare_research.transport.link import Link, UniformLink
from kvshare_research.transport.mpi import Channel, Endpoint, Received

BLOCK_TOKENS = 16
OUTPUT_TOKENS = 4
GROUP_SCOPE, OWN_SCOPE = 1, 2


def directory() -> Directory:
    """Two tenants in one group, and a scope of the group and of the first tenant."""
    empty = Directory(tenants=("ann", "bob"), groups=("team",), scopes=(Scope(0, 0), Scope(GROUP, 1), Scope(TENANT, 1)))
    return empty.granted(1, 1).granted(2, 1)


def prompt(seed: int, token_count: int, *, request_id: int, executor: int | None, tenant: int = 1) -> Any:
    """An arrival at offset 0: a prompt of the group's scope, pinned to a node unless that is None."""
    tokens: NDArray[np.uint32] = np.random.default_rng(seed).integers(0, 256, token_count).astype(np.uint32)
    segments = (Segment(scope_id=GROUP_SCOPE, token_count=token_count),)
    request = Request(
        request_id=request_id, tenant_id=tenant, segments=segments, output_tokens_max=OUTPUT_TOKENS, ingress=0,
        arrival_us=0, executor=executor,
    )  # fmt: skip
    space = ModelSpace(model="tiny", dtype="fp32", block_tokens=BLOCK_TOKENS)
    ring = KeyRing(RootSecret.from_seed(1))
    made: Chain = chain(tokens, segments, (GROUP_SCOPE,), directory=directory(), ring=ring, space=space)
    return 0, request, made, tokens


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PullWhatYouCan(Cost, Selector):
    """One row, on the pinned executor: what is resident there, or else all that another node has; front first if asked."""

    front_blocks: int = 0
    quoted_us: int = 0  # for everything

    def quote(self, given: QuoteInput) -> QuoteTable:
        pinned = given.request.executor
        executor = max(row.node for row in given.loads if row.alive) if pinned is None else pinned
        usable = (given.request.token_count - 1) // given.chain.block_tokens
        here = min(given.verdict.depth(executor), usable)
        others = [(given.verdict.depth(n), -n) for n in range(len(given.loads)) if n != executor]
        best, source = max(others, default=(0, 0))
        there = min(best, usable)
        pull = there > here
        front = min(self.front_blocks, there - 1) if pull and here == 0 else 0
        start = here + front
        action = Action.SPLIT if front else Action.PULL if pull else Action.RESIDENT if here else Action.RECOMPUTE
        row = {
            "action": int(action),
            "executor": executor,
            "resident_blocks": here,
            "front_blocks": front,
            "ttft_us": self.quoted_us,
        }
        if pull:
            row |= {"source": -source, "pulled_blocks": there - start}
        table = table_of([row], token_count=given.request.token_count, block_tokens=given.chain.block_tokens)
        readable_blocks = given.verdict.readable_blocks
        return replace(table, readable_blocks=readable_blocks, best_blocks=max(here, there), draw=given.draw)

    def select(self, table: QuoteTable) -> int:
        return 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlatLinks(Links):
    """All links alike, whatever is measured."""

    node_count: int

    def matrix(self, now_us: int) -> Sequence[Sequence[LinkRow]]:
        row = LinkRow(rtt_us=0, rtt_high_us=0, ps_per_byte=1, ps_per_byte_high=1)
        return [[row] * self.node_count] * self.node_count

    def measured(self, source: int, reader: int, bytes_moved: int, elapsed_us: int, now_us: int) -> FlatLinks:
        return self

    def sending(self, source: int, reader: int, byte_count: int) -> FlatLinks:
        return self


class FaultyEndpoint:
    """Damages or holds back blocks on their way out: `flip` a byte of the n-th frame, or `hold` all for some polls."""

    def __init__(self, inner: Endpoint, *, flip: int | None, hold_until: Any) -> None:
        self.inner = inner
        self._flip = flip
        self._hold_until = hold_until
        self._frames = 0
        self._held: list[tuple[int, Any]] = []

    def send(self, rank: int, channel: Channel, data: Any) -> None:
        if channel == Channel.BLOCKS:
            self._frames += 1
            if self._frames - 1 == self._flip:
                data[-7] ^= 4
            if self._hold_until is not None:
                self._held.append((rank, data))
                return
        self.inner.send(rank, channel, data)

    def poll(self) -> list[Received]:
        received = self.inner.poll()
        if self._held and any(self._hold_until(item) for item in received):
            for rank, data in self._held:
                self.inner.send(rank, Channel.BLOCKS, data)
            self._held.clear()
        return received

    def unsent_bytes(self) -> int:
        return self.inner.unsent_bytes()

    def drop(self, rank: int) -> None:
        self.inner.drop(rank)

    def in_motion(self) -> bool:
        return self.inner.in_motion()


class LosingEndpoint:
    """What it is told to lose never leaves: `lost` says so of each word on the pool, and of how many it was before."""

    def __init__(self, inner: Endpoint, lost: Callable[[PoolMessage, int], bool]) -> None:
        self.inner, self._lost = inner, lost
        self._sent: Counter[tuple[int, int]] = Counter()

    def send(self, rank: int, channel: Channel, data: Any) -> None:
        message = wire.decode(data).message if channel == Channel.CONTROL else None
        if isinstance(message, wire.Deliver) and message.kind == "PoolChanged":
            told: Any = message.event()
            before = self._sent[told.message.incarnation, told.message.seq]
            self._sent[told.message.incarnation, told.message.seq] += not isinstance(told.message.body, Heartbeat)
            if self._lost(told.message, before):
                return
        self.inner.send(rank, channel, data)

    def poll(self) -> list[Received]:
        return self.inner.poll()

    def unsent_bytes(self) -> int:
        return self.inner.unsent_bytes()

    def drop(self, rank: int) -> None:
        self.inner.drop(rank)

    def in_motion(self) -> bool:
        return self.inner.in_motion()


# The router never hears that a block has gone, nor of anything from which it could tell; or every other entry is lost.
LOSSES: dict[str, Callable[[PoolMessage, int], bool]] = {
    "removals": lambda message, before: not isinstance(message.body, BlocksStored),
    "every other": lambda message, before: (
        message.seq % 2 == 0 and before == 0 and not isinstance(message.body, Heartbeat)
    ),
}


class RaisingWorker(Worker):
    """A state machine with a fault: it raises on its second request."""

    def _dispatched(self, event: Any, now_us: int) -> Any:
        self.__dict__["seen"] = self.__dict__.get("seen", 0) + 1
        if self.__dict__["seen"] == 2:
            raise ZeroDivisionError("planted")
        return super()._dispatched(event, now_us)


class KilledWorker(Worker):
    """A machine that loses its power on its second request."""

    def _dispatched(self, event: Any, now_us: int) -> Any:
        self.__dict__["seen"] = self.__dict__.get("seen", 0) + 1
        if self.__dict__["seen"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._dispatched(event, now_us)


class TestAssembly:
    """What `Assembly` asks for. Everything that varies is in the config, so a replay builds the same machines."""

    __test__ = False

    def engine(self, config: Config, local_rank: int) -> Engine:
        return Tiny(**config["engine"]).load(local_rank)

    def worker(self, config: Config, place: Place) -> Worker:
        book = directory()
        if config.get("revoked_at") == place.node:
            book = book.revoked(2, 1)  # this node has heard of it, the router has not
        faults = {config.get("raise_at"): RaisingWorker, config.get("kill_at"): KilledWorker}
        kind = faults.get(place.node, Worker)
        assert place.node is not None
        return kind(
            node=place.node,
            incarnation=place.incarnation,
            policy=WorkerPolicy(
                retention=LruRetention(), schedule=FcfsSchedule(), block_tokens=BLOCK_TOKENS,
                block_bytes=place.block_bytes, fetch_deadline_us=config.get("deadline_us", 20_000_000),
            ),
            ledger=Ledger(capacity_blocks=place.capacity_blocks, accounts=(), retention=LruRetention()),
            directory=book,
        )  # fmt: skip

    def router(self, config: Config, place: Place) -> Router:
        """With `prefetch` what a tenant asked for elsewhere is moved to its ingress."""
        policy = PullWhatYouCan(front_blocks=config.get("front_blocks", 0), quoted_us=config.get("pad_us", 0))
        shape = Shape(kind=ShapeKind.PAD if "pad_us" in config else ShapeKind.NONE)
        return Router(
            policy=RouterPolicy(
                cost=policy,
                selector=policy,
                actions=frozenset(Action),
                block_bytes=place.block_bytes,
                shape=shape,
                prefetch=Ppm(**config["prefetch"]) if "prefetch" in config else None,
            ),
            directory=directory(),
            index=ReferenceIndex().new_store(place.node_count),
            links=FlatLinks(node_count=place.node_count),
            node_count=place.node_count,
        )

    def link(self, config: Config) -> Link:
        return UniformLink(**config.get("link", {}))

    def wrap(self, endpoint: Endpoint, config: Config, node: int) -> Endpoint:
        if "lose" in config:
            return LosingEndpoint(endpoint, LOSSES[config["lose"]])
        fault = config.get("fault", {})
        if fault.get("node") != node:
            return endpoint
        hold = (lambda item: b"FetchCancelled" in bytes(item.data)) if fault.get("hold") else None
        return FaultyEndpoint(endpoint, flip=fault.get("flip"), hold_until=hold)

    def tap(self, config: Config, place: Place) -> Tap | None:
        assert place.node is not None
        return Events(**config["events"]).tap(place.node, BLOCK_TOKENS, directory()) if "events" in config else None
