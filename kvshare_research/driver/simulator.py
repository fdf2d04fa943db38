"""The router and workers that run on MPI, in virtual time: an event heap, modelled engines, modelled links.

Deterministic: equal inputs and seed give equal outcomes, byte for byte, in any process. Ties in time are broken by
order of scheduling. Nothing here decides anything about requests: that is the machines' own code.
"""

from __future__ import annotations

import gc
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvshare_research.core import messages as m
from kvshare_research.core.nouns import Chain, LinkRow, Outcome, Request
from kvshare_research.core.router import Router
from kvshare_research.core.worker import Worker

from .simulator_engine import EngineModel, ModelledEngine
from .simulator_links import TwoClassLink, one_way_us, unit
from .simulator_words import TO_ROUTER, TO_WORKER, engine_event

Act = Callable[..., None]
Scheduled = tuple[int, int, Act, tuple[object, ...]]
Arrival = tuple[Request, Chain]

_LOSS, _DOWN, _UP, _RING = range(4)  # streams of chance


@dataclass(slots=True)
class _Transfer:
    source: int
    effect: m.SendBlocks
    life: int  # of the asker when the bytes set out
    asked_us: int


@dataclass(slots=True, kw_only=True)
class Simulator:
    """A fleet in virtual time. `links[source][reader]` are the modelled links; the ingress is a node's own region.

    `event_loss_ratio` of published pool events never arrive; heartbeats at `tick_us` then let the router notice. A node
    that fails loses what it held and what was under way to it; `revive` makes the worker it comes back as.
    """

    router: Router
    workers: list[Worker]
    links: Sequence[Sequence[LinkRow]]
    engine: EngineModel
    block_bytes: int
    event_delay_us: int = 0
    control_us: int = 0  # what handing a request over takes beside its way, whatever the link
    event_loss_ratio: float = 0.0
    drop_event: Callable[[m.PoolMessage], bool] | None = None
    tick_us: int = 1_000_000
    seed: int = 0
    step_by_step: bool = False
    revive: Callable[[int, int], Worker] | None = None  # (node, incarnation) -> an empty worker
    record: Callable[[Outcome], None] | None = None  # is given each outcome as it comes; None: kept in `outcomes`
    now_us: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    moved_bytes: int = 0
    events: int = 0
    injected: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    _heap: list[Scheduled] = field(default_factory=list)
    _order: int = 0
    _engines: list[ModelledEngine] = field(default_factory=list)
    _wakes: list[int] = field(default_factory=list)  # per node: bumped when its engine's next end changes
    _lives: list[int] = field(default_factory=list)  # per node: bumped when it fails and when it returns
    _down: set[int] = field(default_factory=set)
    _fair: dict[tuple[int, int], TwoClassLink] = field(default_factory=dict)
    _rings: dict[tuple[int, int], int] = field(default_factory=dict)
    _transfers: dict[int, _Transfer] = field(default_factory=dict)
    _asked_us: dict[tuple[int, int], int] = field(default_factory=dict)
    _ingress: dict[int, int] = field(default_factory=dict)
    _reported_us: dict[int, int] = field(default_factory=dict)
    _rung: int = 0
    _messages: int = 0
    _ticking: bool = False
    _submitted: int | None = None  # the node whose engine was given work by the event being handled
    _ending: int | None = None  # the node whose engine stands between two iterations

    def __post_init__(self) -> None:
        count = len(self.workers)
        self.workers = list(self.workers)
        self._engines = [ModelledEngine(self.engine, self.step_by_step) for _ in range(count)]
        self._wakes, self._lives = [0] * count, [0] * count

    # ------------------------------------------------------------------ from outside
    def inject(self, request: Request, chain: Chain) -> None:
        """The request will arrive at its own arrival time."""
        self._at(request.arrival_us, self._arrive, request, chain)

    def feed(self, arrivals: Iterable[Arrival]) -> None:
        """The requests will arrive in this order, one after the other: a stream is read no further than needed."""
        self._pull(iter(arrivals))

    def at(self, time_us: int, router_event: m.RouterEvent | None = None, **worker_events: m.WorkerEvent) -> None:
        """An event from outside at a given time; `worker_events` are keyed `node0`, `node1`, ..."""
        if router_event is not None:
            self._at(time_us, self._route, router_event)
        for name, event in worker_events.items():
            node = int(name.removeprefix("node"))
            self._at(time_us, self._work, node, event)

    def fail(self, node: int, at_us: int, *, noticed_us: int, back_us: int | None = None) -> None:
        """The node dies at `at_us`, the router learns it at `noticed_us`; it returns empty at `back_us`."""
        assert at_us <= noticed_us <= (noticed_us if back_us is None else back_us)
        self._at(at_us, self._die, node)
        self._at(noticed_us, self._route, m.NodeLost(node=node))
        if back_us is not None:
            self._at(back_us, self._return, node)

    def run(self, until_us: int | None = None) -> list[Outcome]:
        """All that is scheduled (up to a time) has happened; returns the outcomes so far."""
        heap, pop = self._heap, heapq.heappop
        collecting = gc.isenabled()
        gc.disable()  # a fleet is millions of living objects in no cycle: looking through them is a sixth of the time
        try:
            while heap and (until_us is None or heap[0][0] <= until_us):
                now_us, _, act, args = pop(heap)
                self.now_us = now_us
                self.events += 1
                act(*args, now_us)
        finally:
            if collecting:
                gc.enable()
        return self.outcomes

    # ------------------------------------------------------------------ plumbing
    def _at(self, time_us: int, act: Act, *args: object) -> None:
        assert time_us >= self.now_us, f"an event at {time_us} us lies before {self.now_us} us"
        self._order += 1
        heapq.heappush(self._heap, (time_us, self._order, act, args))

    def _pull(self, arrivals: Iterator[Arrival]) -> None:
        if (arrival := next(arrivals, None)) is not None:
            self._at(max(arrival[0].arrival_us, self.now_us), self._arrive_and_pull, *arrival, arrivals)

    def _arrive_and_pull(self, request: Request, chain: Chain, arrivals: Iterator[Arrival], now_us: int) -> None:
        self._arrive(request, chain, now_us)
        self._pull(arrivals)

    def _arrive(self, request: Request, chain: Chain, now_us: int) -> None:
        self.injected += 1
        self._ingress[request.request_id] = request.ingress
        if not self._ticking:
            self._ticking = True
            self._at(now_us + self.tick_us, self._tick)
        self._route(m.Arrived(request=request, chain=chain), now_us)

    def _tick(self, now_us: int) -> None:
        """The router's clock, and the workers' where an event may have been lost; stops when nothing is under way."""
        self._route(m.Ticked(), now_us)
        if self.event_loss_ratio or self.drop_event is not None:
            for node in range(len(self.workers)):
                self._work(node, m.Ticked(), now_us)
        self._ticking = self.router.in_flight > 0
        if self._ticking:
            self._at(now_us + self.tick_us, self._tick)

    def _route(self, event: m.RouterEvent, now_us: int) -> None:
        for effect in self.router.handle(event, now_us):
            self._perform_router(effect, now_us)

    def _work(self, node: int, event: m.WorkerEvent, now_us: int) -> None:
        if node in self._down:
            return
        for effect in self.workers[node].handle(event, now_us):
            _PERFORMED[type(effect)](self, node, effect, now_us)
        if self._submitted is not None and node != self._ending:
            self._submitted = None
            self._start_engine(node, now_us)

    def _if_alive(self, node: int, life: int, event: m.WorkerEvent, now_us: int) -> None:
        """A message or a result reaches the node it was meant for, unless that has failed since."""
        if self._lives[node] == life:
            self._work(node, event, now_us)

    def _send(self, node: int, delay_us: int, event: m.WorkerEvent, now_us: int) -> None:
        self._at(now_us + delay_us, self._if_alive, node, self._lives[node], event)

    def _one_way_us(self, source: int, reader: int) -> int:
        if source == reader:
            return 0
        self._messages += 1
        return one_way_us(self.links[source][reader], self.seed, _RING, source, reader, self._messages)

    def _perform_router(self, effect: m.RouterEffect, now_us: int) -> None:
        if isinstance(effect, m.Dispatch):
            event = m.Dispatched(request=effect.request, chain=effect.chain, plan=effect.plan, reader=effect.reader)
            node = effect.plan.executor
            self._send(node, self.control_us + self._one_way_us(effect.request.ingress, node), event, now_us)
        elif isinstance(effect, m.Record):
            self._ingress.pop(effect.outcome.request_id, None)
            self._reported_us.pop(effect.outcome.request_id, None)
            if effect.release_us > now_us:
                self._at(effect.release_us, self._told, effect.outcome)
            else:
                self._told(effect.outcome, now_us)
        elif not isinstance(effect, m.Reject):  # which nobody waits for here
            self._send(effect.node, self.event_delay_us, TO_WORKER[type(effect)](effect), now_us)

    def _told(self, outcome: Outcome, now_us: int) -> None:
        (self.record or self.outcomes.append)(outcome)

    # ------------------------------------------------------------------ engines
    def _prefill(self, node: int, effect: m.Prefill, now_us: int) -> None:
        self._engines[node].prefill(effect.request_id, effect.start_token, effect.end_token, effect.is_last, now_us)
        self._submitted = node

    def _decode(self, node: int, effect: m.Decode, now_us: int) -> None:
        self._engines[node].decode(effect.request_id, effect.start_token, effect.token_count, now_us)
        self._submitted = node

    def _start_engine(self, node: int, now_us: int) -> None:
        """New work was submitted: an idle engine begins, a busy one may have to stop skipping."""
        engine = self._engines[node]
        due_us = engine.cut(now_us) if engine.running else engine.begin(now_us, self._slow_permille(node))
        if due_us is not None:
            self._wake_at(node, due_us)

    def _slow_permille(self, node: int) -> int:
        """How an iteration of the node is slowed by the engines that run beside it."""
        if self.engine.together_permille == 1_000:
            return 1_000
        others = [engine.running for i, engine in enumerate(self._engines) if i != node]
        return self.engine.slowed_permille(sum(others), len(others))

    def _wake_at(self, node: int, due_us: int) -> None:
        self._wakes[node] += 1
        self._at(due_us, self._engine_ends, node, self._wakes[node])

    def _engine_ends(self, node: int, wake: int, now_us: int) -> None:
        if wake != self._wakes[node]:
            return
        engine = self._engines[node]
        self._ending = node  # everything that ends now is told before the next iteration begins
        for ended in engine.end(now_us):
            self._work(node, engine_event(ended), now_us)
        self._ending, self._submitted = None, None
        due_us = engine.begin(now_us, self._slow_permille(node))
        if due_us is not None:
            self._wake_at(node, due_us)

    # ------------------------------------------------------------------ bytes
    def _ask(self, node: int, effect: m.Fetch, now_us: int) -> None:
        """The holder is asked; at the deadline the reader is told the time, in case nothing has come."""
        asked = m.FetchAsked(
            fetch_id=effect.fetch_id, asker=node, reader=effect.reader, hashes=effect.hashes,
            revision=self.workers[node].directory.revision, marks=effect.marks, background=effect.background,
        )  # fmt: skip
        self._asked_us[node, effect.fetch_id] = now_us
        self._at(effect.deadline_us, self._deadline, node, effect.fetch_id, self._lives[node])
        self._send(effect.source, self._one_way_us(node, effect.source), asked, now_us)

    def _refuse(self, node: int, effect: m.RefuseFetch, now_us: int) -> None:
        self.counters[f"fetches failed: {effect.reason}"] += 1
        failed = m.FetchFailed(fetch_id=effect.fetch_id, reason=effect.reason)
        self._asked_us.pop((effect.asker, effect.fetch_id), None)
        self._send(effect.asker, self._one_way_us(node, effect.asker), failed, now_us)

    def _cancel(self, node: int, effect: m.CancelFetch, now_us: int) -> None:
        self._asked_us.pop((node, effect.fetch_id), None)

    def _deadline(self, node: int, fetch_id: int, life: int, now_us: int) -> None:
        if self._asked_us.pop((node, fetch_id), None) is not None:
            self.counters["fetches past their deadline"] += 1
            self._if_alive(node, life, m.Ticked(), now_us)

    def _start_transfer(self, node: int, effect: m.SendBlocks, now_us: int) -> None:
        pair = (node, effect.asker)
        if pair not in self._fair:
            self._fair[pair] = TwoClassLink(self.links[node][effect.asker].ps_per_byte)
        self._order += 1
        asked_us = self._asked_us.get((effect.asker, effect.fetch_id), now_us)
        self._transfers[self._order] = _Transfer(node, effect, self._lives[effect.asker], asked_us)
        self._fair[pair].start(self._order, len(effect.slots) * self.block_bytes, now_us, effect.background)
        self._ring(pair)

    def _ring(self, pair: tuple[int, int]) -> None:
        """The next end of a transfer on this link is scheduled anew; a link without any is forgotten."""
        due_us = self._fair[pair].next_us()
        if due_us is None:
            del self._fair[pair], self._rings[pair]
            return
        self._rung += 1
        self._rings[pair] = self._rung
        self._at(due_us, self._transfers_end, pair, self._rung)

    def _transfers_end(self, pair: tuple[int, int], ring: int, now_us: int) -> None:
        if ring != self._rings.get(pair):
            return
        for number in self._fair[pair].finished(now_us):
            self._landed(self._transfers.pop(number), now_us)
        self._ring(pair)

    def _landed(self, transfer: _Transfer, now_us: int) -> None:
        """The last byte has left; it arrives half a round trip later, unless the source has failed meanwhile."""
        effect, node, asker = transfer.effect, transfer.source, transfer.effect.asker
        self._asked_us.pop((asker, effect.fetch_id), None)
        intact = node not in self._down
        size = len(effect.slots) * self.block_bytes if intact else 0
        self.moved_bytes += size
        merge_us = size * self.engine.merge_ps_per_byte // 1_000_000
        delay_us = self._one_way_us(node, asker)
        landed = m.FetchLanded(
            fetch_id=effect.fetch_id, block_count=len(effect.slots), tickets=effect.tickets, origins=effect.origins,
            bytes_moved=size, elapsed_us=now_us + delay_us - transfer.asked_us, merge_us=merge_us, intact=intact,
            marks=effect.marks,
        )  # fmt: skip
        self._at(now_us + delay_us + merge_us, self._if_alive, asker, transfer.life, landed)
        self._work(node, m.FetchSent(fetch_id=effect.fetch_id, asker=asker), now_us)

    # ------------------------------------------------------------------ words to the router
    def _tell(self, event: m.RouterEvent, delay_us: int, now_us: int) -> None:
        if delay_us:
            self._at(now_us + delay_us, self._route, event)
        else:
            self._route(event, now_us)

    def _publish(self, node: int, effect: m.Publish, now_us: int) -> None:
        if self._is_lost(effect.message):
            self.counters["events lost"] += 1
            return
        self._tell(m.PoolChanged(message=effect.message), self.event_delay_us, now_us)

    def _first_token(self, node: int, effect: m.ReportFirstToken, now_us: int) -> None:
        event = m.FirstToken(request_id=effect.request_id, node=node)
        self._tell(event, self._report_us(node, effect.request_id, now_us), now_us)

    def _completed(self, node: int, effect: m.ReportCompleted, now_us: int) -> None:
        event = m.Completed(request_id=effect.request_id, outcome=effect.outcome)
        self._tell(event, self._report_us(node, effect.request_id, now_us), now_us)

    def _say(self, node: int, effect: m.WorkerEffect, now_us: int) -> None:
        self._route(TO_ROUTER[type(effect)](node, effect), now_us)

    def _report_us(self, node: int, request_id: int, now_us: int) -> int:
        """How long a report to the client takes; reports of one node on one request never overtake each other."""
        delay_us = self._one_way_us(node, self._ingress.get(request_id, node))
        arrives_us = max(now_us + delay_us, self._reported_us.get(request_id, 0))
        self._reported_us[request_id] = arrives_us
        return arrives_us - now_us

    def _is_lost(self, message: m.PoolMessage) -> bool:
        if self.drop_event is not None and self.drop_event(message):
            return True
        self._messages += 1
        return self.event_loss_ratio > 0 and unit(self.seed, _LOSS, self._messages) < self.event_loss_ratio

    # ------------------------------------------------------------------ failure and return
    def _die(self, node: int, now_us: int) -> None:
        """Nothing of the node answers any more; what it computed, held or was sent is gone."""
        self._down.add(node)
        self._lives[node] += 1
        self._wakes[node] += 1
        self._engines[node] = ModelledEngine(self.engine, self.step_by_step)
        self._asked_us = {key: since for key, since in self._asked_us.items() if key[0] != node}

    def _return(self, node: int, now_us: int) -> None:
        assert self.revive is not None, "a node returns as the worker that `revive` makes"
        self._down.discard(node)
        self._lives[node] += 1
        self.workers[node] = self.revive(node, self._lives[node] + 1)
        capacity = self.workers[node].ledger.node.capacity
        joined = m.NodeJoined(node=node, incarnation=self._lives[node] + 1, capacity_blocks=capacity)
        self._route(joined, now_us)


_PERFORMED: Mapping[type, Callable[[Simulator, int, Any, int], None]] = {
    m.Prefill: Simulator._prefill,
    m.Decode: Simulator._decode,
    m.Fetch: Simulator._ask,
    m.SendBlocks: Simulator._start_transfer,
    m.RefuseFetch: Simulator._refuse,
    m.CancelFetch: Simulator._cancel,
    m.Publish: Simulator._publish,
    m.ReportFirstToken: Simulator._first_token,
    m.ReportCompleted: Simulator._completed,
    **dict.fromkeys(TO_ROUTER, Simulator._say),
}
