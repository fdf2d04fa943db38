"""The router and worker that run on MPI, in virtual time: an event heap, modelled engines, modelled links.

Deterministic: equal inputs give equal outcomes, byte for byte. Ties in time are broken by order of scheduling.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvshare_research.core import messages as m
from kvshare_research.core.nouns import Chain, LinkRow, Outcome, Request
from kvshare_research.core.router import Router
from kvshare_research.core.worker import Worker

Scheduled = tuple[int, int, Callable[[int], None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """Times of a modelled engine, in us. `prefill_us(new_tokens, cached_tokens)` is the calibrated polynomial."""

    prefill_us: Callable[[int, int], int]
    decode_us_per_token: int
    merge_ps_per_byte: int = 0


@dataclass(slots=True, kw_only=True)
class Simulator:
    """A fleet in virtual time. `links[source][reader]` are the modelled links; the ingress is a node's own region."""

    router: Router
    workers: Sequence[Worker]
    links: Sequence[Sequence[LinkRow]]
    engine: EngineModel
    block_bytes: int
    event_delay_us: int = 0
    drop_event: Callable[[m.PoolMessage], bool] = field(default=lambda message: False)
    now_us: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    moved_bytes: int = 0
    events: int = 0
    _heap: list[Scheduled] = field(default_factory=list)
    _order: int = 0
    _link_free_us: dict[tuple[int, int], int] = field(default_factory=dict)
    _ingress: dict[int, int] = field(default_factory=dict)

    def inject(self, request: Request, chain: Chain) -> None:
        """The request will arrive at its own arrival time."""
        self._ingress[request.request_id] = request.ingress
        self._at(request.arrival_us, lambda now: self._route(m.Arrived(request=request, chain=chain), now))

    def at(self, time_us: int, router_event: m.RouterEvent | None = None, **worker_events: m.WorkerEvent) -> None:
        """An event from outside at a given time; `worker_events` are keyed `node0`, `node1`, ..."""
        if router_event is not None:
            self._at(time_us, lambda now: self._route(router_event, now))
        for name, event in worker_events.items():
            node = int(name.removeprefix("node"))
            self._at(time_us, lambda now, node=node, event=event: self._work(node, event, now))  # type: ignore[misc]

    def run(self, until_us: int | None = None) -> list[Outcome]:
        """All that is scheduled (up to a time) has happened; returns the outcomes so far."""
        while self._heap and (until_us is None or self._heap[0][0] <= until_us):
            self.now_us, _, act = heapq.heappop(self._heap)
            self.events += 1
            act(self.now_us)
        return self.outcomes

    # ------------------------------------------------------------------ plumbing
    def _at(self, time_us: int, act: Callable[[int], None]) -> None:
        assert time_us >= self.now_us, f"an event at {time_us} us lies before {self.now_us} us"
        self._order += 1
        heapq.heappush(self._heap, (time_us, self._order, act))

    def _route(self, event: m.RouterEvent, now_us: int) -> None:
        for effect in self.router.handle(event, now_us):
            self._perform_router(effect, now_us)

    def _work(self, node: int, event: m.WorkerEvent, now_us: int) -> None:
        for effect in self.workers[node].handle(event, now_us):
            self._perform_worker(node, effect, now_us)

    def _one_way_us(self, source: int, reader: int) -> int:
        return 0 if source == reader else self.links[source][reader].rtt_us // 2

    def _perform_router(self, effect: m.RouterEffect, now_us: int) -> None:
        if isinstance(effect, m.Dispatch):
            node = effect.plan.executor
            event = m.Dispatched(request=effect.request, chain=effect.chain, plan=effect.plan, reader=effect.reader)
            delay = self._one_way_us(effect.request.ingress, node)
            self._at(now_us + delay, lambda now: self._work(node, event, now))
        elif isinstance(effect, m.Record):
            self.outcomes.append(effect.outcome)
        elif isinstance(effect, m.AskSnapshot):
            asked = m.SnapshotAsked(incarnation=effect.incarnation, after_seq=effect.after_seq)
            self._at(now_us + self.event_delay_us, lambda now: self._work(effect.node, asked, now))
        elif isinstance(effect, m.SendDirectory):
            changed = m.DirectoryChanged(directory=effect.directory)
            self._at(now_us + self.event_delay_us, lambda now: self._work(effect.node, changed, now))

    def _perform_worker(self, node: int, effect: m.WorkerEffect, now_us: int) -> None:
        if isinstance(effect, m.Prefill):
            took = self.engine.prefill_us(effect.end_token - effect.start_token, effect.start_token)
            done = m.PrefillDone(
                request_id=effect.request_id, end_token=effect.end_token, elapsed_us=took, merge_us=0,
                first_token=0 if effect.is_last else None,
            )  # fmt: skip
            self._at(now_us + took, lambda now: self._work(node, done, now))
        elif isinstance(effect, m.Decode):
            took = self.engine.decode_us_per_token * effect.token_count
            decoded = m.DecodeDone(request_id=effect.request_id, tokens=(0,) * effect.token_count, elapsed_us=took)
            self._at(now_us + took, lambda now: self._work(node, decoded, now))
        elif isinstance(effect, m.Fetch):
            self._ask(node, effect, now_us)
        elif isinstance(effect, m.SendBlocks):
            self._send(node, effect, now_us)
        elif isinstance(effect, m.RefuseFetch):
            failed = m.FetchFailed(fetch_id=effect.fetch_id, reason=effect.reason)
            delay = self._one_way_us(node, effect.asker)
            self._at(now_us + delay, lambda now: self._work(effect.asker, failed, now))
        else:
            self._tell_router(node, effect, now_us)

    # ------------------------------------------------------------------ bytes
    def _ask(self, node: int, effect: m.Fetch, now_us: int) -> None:
        asked = m.FetchAsked(
            fetch_id=effect.fetch_id, asker=node, reader=effect.reader, hashes=effect.hashes,
            revision=self.workers[node].directory.revision,
        )  # fmt: skip
        delay = self._one_way_us(node, effect.source)
        self._at(now_us + delay, lambda now: self._work(effect.source, asked, now))

    def _send(self, node: int, effect: m.SendBlocks, now_us: int) -> None:
        """One transfer at a time per directed link, in order of asking."""
        link = self.links[node][effect.asker]
        size = len(effect.slots) * self.block_bytes
        start = max(now_us, self._link_free_us.get((node, effect.asker), 0))
        left = start + -(-size * link.ps_per_byte // 1_000_000)
        self._link_free_us[node, effect.asker] = left
        self.moved_bytes += size
        merge_us = size * self.engine.merge_ps_per_byte // 1_000_000
        asked_us = now_us - self._one_way_us(effect.asker, node)
        landed_us = left + self._one_way_us(node, effect.asker) + merge_us
        landed = m.FetchLanded(
            fetch_id=effect.fetch_id, block_count=len(effect.slots), tickets=effect.tickets, origins=effect.origins,
            bytes_moved=size, elapsed_us=landed_us - merge_us - asked_us, merge_us=merge_us, intact=True,
        )  # fmt: skip
        sent = m.FetchSent(fetch_id=effect.fetch_id, asker=effect.asker)
        self._at(left, lambda now: self._work(node, sent, now))
        self._at(landed_us, lambda now: self._work(effect.asker, landed, now))

    def _tell_router(self, node: int, effect: m.WorkerEffect, now_us: int) -> None:
        event: m.RouterEvent
        delay = 0
        if isinstance(effect, m.Publish):
            if self.drop_event(effect.message):
                return
            event, delay = m.PoolChanged(message=effect.message), self.event_delay_us
        elif isinstance(effect, m.ReportFirstToken):
            event = m.FirstToken(request_id=effect.request_id, node=node)
            delay = self._one_way_us(node, self._ingress[effect.request_id])
        elif isinstance(effect, m.ReportCompleted):
            event = m.Completed(request_id=effect.request_id, outcome=effect.outcome)
            delay = self._one_way_us(node, self._ingress[effect.request_id])
        elif isinstance(effect, m.ReturnPlan):
            event = m.PlanRefused(request_id=effect.request_id, node=node, reason=effect.reason)
        elif isinstance(effect, m.ReportLink):
            event = m.LinkMeasured(
                source=effect.source, reader=node, bytes_moved=effect.bytes_moved, elapsed_us=effect.elapsed_us
            )
        elif isinstance(effect, m.AcknowledgeDirectory):
            event = m.DirectoryAcknowledged(node=node, revision=effect.revision)
        else:
            return  # CancelFetch: the landing is ignored by the worker itself
        self._at(now_us + delay, lambda now: self._route(event, now))
