"""A fleet of shipped router and workers on a network that delays, repeats and loses, with a ghost that never forgets.

Nothing here decides anything: it performs effects in whatever order the test picks and keeps, beside the machines,
what every slot really holds and what the operator really said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from msgspec import structs

from kvshare_research.core import messages as m
from kvshare_research.core.directory import Directory
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import AccountSpec, Action, Outcome, QuoteTable, Request, Segment, Status
from kvshare_research.core.ports import BlockView, QueuedRequest, Retention, Schedule, Selector
from kvshare_research.core.rights import EVERYBODY, GROUP, TENANT, Reader, Scope
from kvshare_research.core.router import Router, RouterPolicy
from kvshare_research.core.running import WorkerPolicy
from kvshare_research.core.worker import Worker
from kvshare_research.cost.links import LinkModel, LinkTable
from kvshare_research.cost.ttft import TtftCost
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.namespace import ModelSpace, chain
from kvshare_research.index.reference import ReferenceIndex

BLOCK_TOKENS = 4
NODES = 3
SPACE = ModelSpace(model="m", dtype="float32", block_tokens=BLOCK_TOKENS)
GUILD = Scope(GROUP, 1)
BASE = (
    Directory(
        tenants=("acme", "bell", "corp"),
        groups=("guild",),
        scopes=(EVERYBODY, GUILD, *(Scope(TENANT, i) for i in (1, 2, 3))),
    )
    .granted(1, 1)
    .granted(2, 1)
)
LAYERED = Layered()
CAPACITY = 14


# ------------------------------------------------------------------ policies that mean no good
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AnyRow(Selector):
    """Takes any row whatever, the same for the same request."""

    salt: int

    def select(self, table: QuoteTable) -> int:
        return (table.draw * 7919 + self.salt) % len(table)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Contrary(Retention):
    """Raises, answers NaN, or prefers what was just used to go."""

    def score(self, block: BlockView, now_us: int) -> float:
        if block.slot % 3 == 0:
            raise RuntimeError("broken policy")
        return float("nan") if block.slot % 3 == 1 else -block.used_us


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AnyNext(Schedule):
    salt: int

    def next(self, queue: Sequence[QueuedRequest], served_tokens: dict[int, int], now_us: int) -> int:
        return (now_us * 31 + self.salt) % len(queue)


# ------------------------------------------------------------------ the ghost
@dataclass(frozen=True)
class Content:
    """What a slot really holds: the block with this hash, which belongs to this scope."""

    block_hash: bytes
    scope: Scope


def allowed(scope: Scope, reader: Reader, directory: Directory) -> bool:
    """The policy once more, written here and not taken from the rules (nothing expires in these runs)."""
    if scope == EVERYBODY:
        return True
    if scope.level == GROUP:
        row = dict(directory.memberships).get((reader.tenant, scope.party))
        return row is not None and row.active
    return scope.level == TENANT and scope.party == reader.tenant


@dataclass
class Wire:
    """A message under way: where to (None: the router), and what it is."""

    to: int | None
    event: m.RouterEvent | m.WorkerEvent
    source: int | None = None  # the node it comes from
    life: int = 0  # the incarnation of that node, or of the receiver of a local event


REPEATABLE = (
    m.PoolChanged, m.FetchAsked, m.FetchLanded, m.DirectoryChanged, m.DirectoryAcknowledged, m.SnapshotAsked,
    m.PrefetchAsked, m.PrefetchCancelled,
)  # fmt: skip
LOSABLE = (
    m.PoolChanged, m.FetchAsked, m.FetchLanded, m.LinkMeasured, m.SnapshotAsked, m.PrefetchAsked, m.PrefetchCancelled,
)  # fmt: skip
LOCAL = (m.PrefillDone, m.DecodeDone, m.FetchSent)  # of a node to itself: gone when it dies


class Fleet:
    """The machines, the wires between them, and the ghost."""

    def __init__(self, *, salt: int, gullible: bool, accounts: Sequence[AccountSpec]) -> None:
        self.now_us = 0
        self.ring = KeyRing(RootSecret.from_seed(salt))
        self.directory = LAYERED.directory(replace(BASE, accounts=tuple(accounts)))
        self.gullible = gullible
        self.salt = salt
        self.life = [1] * NODES
        self.wires: list[Wire] = []
        self.records: dict[int, list[Outcome]] = {}
        self.asked: dict[int, m.Arrived] = {}
        self.barred: set[int] = set()  # requests since whose arrival no machine may think their tenant a member
        self.own: set[tuple[int, int, bytes]] = set()  # (node, request, hash) computed by the request itself
        self.content: dict[tuple[int, int], Content] = {}
        self.transit: dict[tuple[int, int, int], tuple[Content | None, ...]] = {}  # by (holder, asker, fetch id)
        self.landing: dict[tuple[int, int], m.Fetch] = {}
        self.reads = self.cross_reads = self.steps = self.prefetches = self.unpolluted = 0
        self._stretch: dict[tuple[int, int], m.Prefill] = {}
        self.router = self._router()
        self.workers = [self._worker(node) for node in range(NODES)]

    def _router(self) -> Router:
        cost = TtftCost(
            c0_ps=0,
            c1_ps_per_token=2_000_000,
            c2_ps_per_token=0,
            c3_ps_per_token2=0,
            c4_ps_per_token2=0,
            merge_ps_per_byte=0,
        )
        policy = RouterPolicy(cost=cost, selector=AnyRow(salt=self.salt), actions=frozenset(Action), block_bytes=64)
        return Router(
            policy=policy,
            directory=self._told(self.directory),
            index=ReferenceIndex().new_store(NODES),
            links=LinkTable.start(NODES, LinkModel()),
            node_count=NODES,
        )

    def _told(self, directory: Directory) -> Directory:
        """What the router believes: a gullible one thinks that everything is public."""
        return replace(directory, scopes=(EVERYBODY,) * len(directory.scopes)) if self.gullible else directory

    def _worker(self, node: int) -> Worker:
        policy = WorkerPolicy(
            retention=Contrary(), schedule=AnyNext(salt=self.salt), block_tokens=BLOCK_TOKENS, block_bytes=64,
            lease_us=50, fetch_deadline_us=40,
        )  # fmt: skip
        ledger = Ledger(capacity_blocks=CAPACITY, accounts=self.directory.accounts, retention=policy.retention)
        return Worker(node=node, incarnation=self.life[node], policy=policy, ledger=ledger, directory=self.directory)

    # ------------------------------------------------------------------ what comes from outside
    def ask(
        self, tenant: int, parts: Sequence[tuple[int, int, int]], executor: int | None, *, forged: bool = False
    ) -> None:
        """A request of `tenant`: parts of (scope id asked, text, tokens); the same text is the same tokens.

        `forged`: its hashes are those of the scopes asked for, whether or not the tenant belongs there.
        """
        self.now_us += 1
        segments = [Segment(scope_id=s, token_count=n) for s, _, n in parts]
        ids = (
            tuple(s.scope_id for s in segments)
            if forged
            else LAYERED.scopes(tenant, segments, self.directory, self.now_us, 0)
        )
        tokens = np.array([text * 1000 + i for _, text, n in parts for i in range(n)], dtype=np.uint32)
        made = chain(tokens, segments, ids, directory=self.directory, ring=self.ring, space=SPACE)
        number = len(self.asked) + 1
        request = Request(
            request_id=number,
            tenant_id=tenant,
            segments=tuple(Segment(scope_id=i, token_count=s.token_count) for i, s in zip(ids, segments, strict=True)),
            output_tokens_max=1 + number % 3,
            ingress=number % NODES,
            arrival_us=self.now_us,
            executor=executor,
        )
        self.asked[number] = m.Arrived(request=request, chain=made)
        if self.router.revocation_complete() and not allowed(GUILD, Reader(tenant, 0, 0), self.directory):
            self.barred.add(number)
        self._route(self.asked[number])

    def prefetch(self, number: int, node: int, source: int, start: int, tenant: int, ticks: int) -> None:
        """Whoever predicts wants the chain of request `number` on a node, as that tenant: any chain, anybody, anywhere."""
        arrived = self.asked[number]
        count = arrived.chain.block_count
        if not count:
            return
        self.prefetches += 1
        asked = m.PrefetchAsked(
            request=structs.replace(arrived.request, request_id=self.prefetches, tenant_id=tenant), chain=arrived.chain,
            start=start % count, source=source, reader=Reader(tenant, 0, 0), deadline_us=ticks,
        )  # fmt: skip
        self.wires.append(Wire(node, asked))

    def cancel(self, node: int, prefetch_id: int) -> None:
        """The prefetch is wanted no more, if it ever began and is not over."""
        self.wires.append(Wire(node, m.PrefetchCancelled(prefetch_id=prefetch_id)))

    def change(self, directory: Directory) -> None:
        """The operator's word; it counts from now on."""
        self.directory = directory
        self.barred = {n for n in self.barred if not allowed(GUILD, self._reader(n), directory)}
        self._route(m.DirectoryChanged(directory=self._told(directory)))

    def lose(self, node: int) -> None:
        """The node dies with all it holds and comes back empty."""
        self.life[node] += 1
        self.wires = [w for w in self.wires if not (w.to == node or (isinstance(w.event, LOCAL) and w.source == node))]
        self.content = {at: c for at, c in self.content.items() if at[0] != node}
        self.workers[node] = self._worker(node)
        self._route(m.NodeLost(node=node))
        self._route(m.NodeJoined(node=node, incarnation=self.life[node], capacity_blocks=CAPACITY))

    def tick(self, ticks: int) -> None:
        self.now_us += ticks
        self._route(m.Ticked())
        for node in range(NODES):
            self._work(node, m.Ticked())

    # ------------------------------------------------------------------ the network
    def deliver(self, position: int, *, again: bool = False) -> None:
        """The message at `position` arrives; with `again` a copy stays under way, if messages of its kind repeat."""
        wire = self.wires[position]
        if not (again and isinstance(wire.event, REPEATABLE)):
            del self.wires[position]
        self.now_us += 1
        if isinstance(wire.event, m.FetchLanded) and wire.to is not None:
            fetch = self.landing.get((wire.to, wire.event.fetch_id))
            if fetch is not None and fetch.source != wire.source:
                return  # as the driver: what another node sends for a fetch of an earlier life is not landed
        if wire.to is None:
            self._route(wire.event)  # type: ignore[arg-type]
        else:
            self._work(wire.to, wire.event)  # type: ignore[arg-type]

    def drop(self, position: int) -> None:
        """The message is lost, if its kind can be. A fetch that was lost has been sent all the same."""
        if isinstance(self.wires[position].event, LOSABLE):
            del self.wires[position]

    def settle(self) -> None:
        """Everything under way arrives, time passes, and what was lost is repaired."""
        for _ in range(400):
            while self.wires:
                self.deliver(0)
            if not self.router.in_flight:
                break
            self.tick(50)
        for _ in range(3):  # heartbeat, request for repair, repair
            self.tick(200_000)
            while self.wires:
                self.deliver(0)

    # ------------------------------------------------------------------ performing effects
    def _route(self, event: m.RouterEvent) -> None:
        self.steps += 1
        for effect in self.router.handle(event, self.now_us):
            if isinstance(effect, m.Dispatch):
                sent = m.Dispatched(request=effect.request, chain=effect.chain, plan=effect.plan, reader=effect.reader)
                self.wires.append(Wire(effect.plan.executor, sent))
            elif isinstance(effect, m.Record):
                self.records.setdefault(effect.outcome.request_id, []).append(effect.outcome)
            elif isinstance(effect, m.AskSnapshot):
                asked = m.SnapshotAsked(incarnation=effect.incarnation, after_seq=effect.after_seq)
                self.wires.append(Wire(effect.node, asked))
            elif isinstance(effect, m.SendDirectory):
                self.wires.append(Wire(effect.node, m.DirectoryChanged(directory=self.directory)))

    def _work(self, node: int, event: m.WorkerEvent) -> None:
        self.steps += 1
        fetching = self.workers[node].fetching.running(event.fetch_id) if isinstance(event, m.FetchLanded) else None
        before = set(fetching.fetched) if fetching is not None else set()
        if isinstance(event, m.FetchLanded):
            self._land(node, event)
        if isinstance(event, m.PrefillDone):
            self._computed(node, event)
        held = self._held_before_a_prefetch(node, event)
        for effect in self.workers[node].handle(event, self.now_us):
            self._perform(node, effect)
        if held is not None:
            assert held <= {b.slot for b in self.workers[node].ledger.named()}, "a prefetch displaced a block"
            self.unpolluted += 1
        if fetching is not None:
            for i in fetching.fetched - before:
                scope = self.content[node, fetching.blocks[i].slot].scope
                reader = fetching.event.reader
                assert allowed(scope, reader, self.workers[node].directory), "accepted what the reader may not read"

    def _held_before_a_prefetch(self, node: int, event: m.WorkerEvent) -> set[int] | None:
        """Slots with findable blocks, where a prefetch is asked for and no request waits that could displace one."""
        worker = self.workers[node]
        if not isinstance(event, m.PrefetchAsked) or worker.queued_requests:
            return None
        return {b.slot for b in worker.ledger.named()}

    def _perform(self, node: int, effect: m.WorkerEffect) -> None:
        handlers: dict[type, Callable[[int, m.WorkerEffect], None]] = {
            m.Prefill: self._prefill,
            m.SendBlocks: self._send,
        }  # type: ignore[dict-item]
        if type(effect) in handlers:
            handlers[type(effect)](node, effect)
        elif isinstance(effect, m.Decode):
            done = m.DecodeDone(request_id=effect.request_id, tokens=(0,) * effect.token_count, elapsed_us=1)
            self._send_local(node, done)
        elif isinstance(effect, m.Fetch):
            self.landing[node, effect.fetch_id] = effect
            asked = m.FetchAsked(
                fetch_id=effect.fetch_id, asker=node, reader=effect.reader, hashes=effect.hashes,
                revision=self.workers[node].directory.revision, marks=effect.marks, background=effect.background,
            )  # fmt: skip
            self.wires.append(Wire(effect.source, asked, node))
        elif isinstance(effect, m.CancelFetch):
            self.landing.pop((node, effect.fetch_id), None)
        elif isinstance(effect, m.RefuseFetch):
            self.wires.append(Wire(effect.asker, m.FetchFailed(fetch_id=effect.fetch_id, reason=effect.reason), node))
        else:
            self._tell_router(node, effect)

    def _send_local(self, node: int, event: m.WorkerEvent) -> None:
        self.wires.append(Wire(node, event, node, self.life[node]))

    def _tell_router(self, node: int, effect: m.WorkerEffect) -> None:
        event: m.RouterEvent
        if isinstance(effect, m.Publish):
            event = m.PoolChanged(message=effect.message)
        elif isinstance(effect, m.ReportFirstToken):
            event = m.FirstToken(request_id=effect.request_id, node=node)
        elif isinstance(effect, m.ReportCompleted):
            event = m.Completed(request_id=effect.request_id, outcome=effect.outcome)
        elif isinstance(effect, m.ReturnPlan):
            event = m.PlanRefused(request_id=effect.request_id, node=node, reason=effect.reason)
        elif isinstance(effect, m.ReportLink):
            event = m.LinkMeasured(
                source=effect.source, reader=node, bytes_moved=effect.bytes_moved, elapsed_us=effect.elapsed_us
            )
        elif isinstance(effect, m.ReportPrefetch):
            event = m.PrefetchEnded(
                prefetch_id=effect.prefetch_id, node=node, landed_blocks=effect.landed_blocks,
                bytes_moved=effect.bytes_moved, reason=effect.reason,
            )  # fmt: skip
        else:
            assert isinstance(effect, m.AcknowledgeDirectory)
            event = m.DirectoryAcknowledged(node=node, revision=effect.revision)
        self.wires.append(Wire(None, event, node))

    # ------------------------------------------------------------------ bytes, and what may be done with them
    def _prefill(self, node: int, effect: m.WorkerEffect) -> None:
        """Attention reads every block before the stretch: each must be the right one, and readable."""
        assert isinstance(effect, m.Prefill)
        arrived = self.asked[effect.request_id]
        for i in range(effect.start_token // BLOCK_TOKENS):
            held = self.content.get((node, effect.slots[i]))
            assert held is not None, f"block {i} of request {effect.request_id} was never written"
            assert held.block_hash == arrived.chain.block_hash(i), "a wrong block is read: a wrong token follows"
        self._check_reads(arrived, node, effect)
        done = m.PrefillDone(
            request_id=effect.request_id, end_token=effect.end_token, elapsed_us=1, merge_us=0,
            first_token=0 if effect.is_last else None,
        )  # fmt: skip
        self._send_local(node, done)
        self._stretch[node, effect.request_id] = effect

    def _check_reads(self, arrived: m.Arrived, node: int, effect: m.Prefill) -> None:
        """Blocks that this request did not compute belong to scopes whose party its tenant is, or just was."""
        number = arrived.request.request_id
        for i in range(effect.start_token // BLOCK_TOKENS):
            held = self.content[node, effect.slots[i]]
            if (node, number, held.block_hash) in self.own:
                continue
            self.reads += 1
            self.cross_reads += held.scope.level <= GROUP
            if held.scope.level == GROUP:
                assert number not in self.barred, "read without the right, after the revocation was complete"
            else:
                assert allowed(held.scope, self._reader(number), self.directory), "read without the right"

    def _reader(self, number: int) -> Reader:
        return Reader(self.asked[number].request.tenant_id, 0, 0)

    def _computed(self, node: int, event: m.PrefillDone) -> None:
        effect = self._stretch.pop((node, event.request_id))
        chain_ = self.asked[event.request_id].chain
        for i in range(effect.start_token // BLOCK_TOKENS, min(effect.end_token // BLOCK_TOKENS, chain_.block_count)):
            scope = self.directory.scopes[chain_.scope_at(i)]
            self.content[node, effect.slots[i]] = Content(chain_.block_hash(i), scope)
            self.own.add((node, event.request_id, chain_.block_hash(i)))

    def _send(self, node: int, effect: m.WorkerEffect) -> None:
        """The holder said yes: the right must hold by the directory it has applied. Bytes are read until `FetchSent`."""
        assert isinstance(effect, m.SendBlocks)
        reader = self._reader_of(effect.asker, effect.fetch_id)
        for slot in effect.slots:
            scope = self.content[node, slot].scope
            if reader is not None:
                assert allowed(scope, reader, self.workers[node].directory), "sent to somebody without the right"
        self.transit[node, effect.asker, effect.fetch_id] = tuple(self.content[node, slot] for slot in effect.slots)
        landed = m.FetchLanded(
            fetch_id=effect.fetch_id, block_count=len(effect.slots), tickets=effect.tickets, origins=effect.origins,
            bytes_moved=64 * len(effect.slots), elapsed_us=2, merge_us=0, intact=True, marks=effect.marks,
        )  # fmt: skip
        self._send_local(node, m.FetchSent(fetch_id=effect.fetch_id, asker=effect.asker))
        self.wires.append(Wire(effect.asker, landed, node))

    def _reader_of(self, asker: int, fetch_id: int) -> Reader | None:
        running = self.workers[asker].fetching.running(fetch_id)
        return None if running is None else running.event.reader

    def _land(self, node: int, event: m.FetchLanded) -> None:
        """The driver writes bytes only while the fetch is open; what is written must then be accepted or never read."""
        running = self.workers[node].fetching.running(event.fetch_id)
        fetch = self.landing.get((node, event.fetch_id))
        if running is None or fetch is None:
            return
        sent = self.transit[fetch.source, node, event.fetch_id]
        assert len(sent) == len(fetch.slots), "a holder sends all that was asked for, or refuses"
        for slot, content in zip(fetch.slots, sent, strict=True):
            if content is not None:
                self.content[node, slot] = content

    # ------------------------------------------------------------------ what must always be true
    def check(self) -> None:
        for worker in self.workers:
            worker.ledger.check()
            for block in worker.ledger.named():
                held = self.content.get((worker.journal.node, block.slot))
                assert held is not None, "a block is findable that was never written"
                assert held.block_hash == block.block_hash, "a block is findable under another block's hash"
                assert held.scope == self.directory.scopes[block.scope_id], "a block is booked to another scope"
        for number, outcomes in self.records.items():
            assert len(outcomes) == 1, f"request {number} was recorded {len(outcomes)} times"
        if self.router.revocation_complete() and not self.gullible:
            for worker in self.workers:
                assert worker.directory.revision == self.directory.revision, "complete, and a worker does not know"

    def check_settled(self) -> None:
        """At rest: every request ended once, nothing is pinned, and the router knows exactly what the workers hold."""
        assert set(self.records) == set(self.asked), "a request was lost"
        assert self.router.in_flight == 0
        for node, worker in enumerate(self.workers):
            assert worker.queued_requests == 0
            assert worker.prefetching.flights == {}, "a prefetch has not ended"
            assert all(block.pins == 0 for block in worker.ledger.named())
            assert all(account.pinned == 0 for account in worker.ledger.accounts.values())
            held = sorted(b.block_hash for b in worker.ledger.named() if b.block_hash is not None)
            closed = self.directory.closed_scopes()
            assert not any(b.scope_id in closed for b in worker.ledger.named()), "a removed tenant's block is left"
            known = sorted(block_hash for _, block_hash, _, _ in self.router.replica.store.rows(node))
            assert known == held, f"the router's view of node {node} is not what it holds"

    def done(self) -> list[Outcome]:
        return [o for outcomes in self.records.values() for o in outcomes if o.status == Status.DONE]
