"""Rank 0: the router, and the API by which a study loads engines once and then runs many cases.

    cluster.load(config) ; for each case: cluster.reset(config) ; result = cluster.play(arrivals)

Nothing here is collective: the router polls, sends and waits, and a worker's failure arrives as a message.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from kvshare_research import launch
from kvshare_research.core import messages as m
from kvshare_research.core.errors import ConfigError, RemoteError
from kvshare_research.core.nouns import Chain, Outcome, Request
from kvshare_research.core.promotion import name_of
from kvshare_research.driver.assembly import Assembly, Config, Place, assembly_path
from kvshare_research.driver.clock import Clock, Rest
from kvshare_research.driver.hearing import Hearing
from kvshare_research.driver.held import Held
from kvshare_research.driver.log import EventLog
from kvshare_research.driver.played import Interrupted as Interrupted
from kvshare_research.driver.played import Played as Played
from kvshare_research.driver.played import RunBroken as RunBroken
from kvshare_research.transport import wire
from kvshare_research.transport.link import UniformLink
from kvshare_research.transport.mpi import Channel, Endpoint, Received
from kvshare_research.transport.shaped import ShapedEndpoint

if TYPE_CHECKING:
    from kvshare_research.core.router import Router

Spans = Sequence[tuple[int, int]]
Times = tuple[tuple[int, ...], ...]  # us, a row per span
TICK_US: Final = 100_000
SILENCE_S_MAX: Final = 900.0  # a worker says something every tick while it serves; this is for loading and long kernels
Arrival = tuple[int, Request, Chain, NDArray[np.uint32]]  # offset in us, and the prompt's tokens


class Cluster:
    """The workers of this job as rank 0 sees them. Use from one thread."""

    def __init__(self, endpoint: Endpoint, assembly: Assembly, *, node_count: int) -> None:
        self.node_count = node_count
        self.engines: tuple[wire.EngineReady, ...] = ()
        self.router: Router | None = None
        self.interrupt_asked = False
        self.told: Callable[[Outcome], None] | None = None  # of each request as it ends
        self.prepare: Callable[[Request, NDArray[np.uint32], int], tuple[Request, Chain]] | None = None
        self.text_of: Callable[[bytes], NDArray[np.uint32] | None] | None = None  # of a released prefix, by name
        self._assembly = assembly
        self._raw = endpoint
        self._clock = Clock()
        self._endpoint = ShapedEndpoint(endpoint, UniformLink(), self._clock.now_us)
        self._rest = Rest()
        self._case = 0
        self._log: EventLog | None = None
        self._replies: list[Any] = []
        self._gone: set[int] = set()
        self.hearing = Hearing(node_count)
        self._begin()

    def _begin(self) -> None:
        self._tokens: dict[int, bytes] = {}
        self._decide_us: dict[int, int] = {}
        self._outcomes: list[Outcome] = []
        self._open: set[int] = set()
        self._held = Held()
        self._counters: Counter[str] = Counter()
        self._next_tick_us = TICK_US
        self._next_arrival_us: int | None = None

    # ------------------------------------------------------------------ the study's API
    def load(self, config: Config) -> tuple[wire.EngineReady, ...]:
        """Every worker has loaded the engine of this configuration; what they loaded, by node."""
        self._broadcast(wire.LoadEngine(dict(config)))
        rows = sorted(self._gather(wire.EngineReady, "load the engine"), key=lambda row: row.node)
        kinds = {(row.fingerprint, row.block_bytes, row.layer_count) for row in rows}
        if len(kinds) > 1:
            raise ConfigError(f"workers loaded different models: {sorted(kinds)}; give all hosts the same model files")
        self.engines = tuple(rows)
        return self.engines

    def reset(self, config: Config, *, record: bool = False) -> None:
        """A new case: fresh machines built from `config`, empty pools, free links, clocks at zero."""
        if not self.engines:
            raise ConfigError("`reset` came before `load`; load an engine first")
        self._case += 1
        self.router = self.prepare = self.text_of = self.told = None
        plain = dict(config)
        self._broadcast(wire.Reset(self._case, plain, record))
        self._gather(wire.ResetDone, "begin a case")
        capacity = min(row.capacity_blocks for row in self.engines)
        place = Place(
            node=None, node_count=self.node_count, capacity_blocks=capacity,
            block_bytes=self.engines[0].block_bytes, incarnation=self._case,
        )  # fmt: skip
        self.router = self._assembly.router(plain, place)
        self._clock.restart()
        self.hearing.begin(0)
        self._begin()
        self._endpoint = ShapedEndpoint(self._raw, self._assembly.link(plain), self._clock.now_us)
        self._log = EventLog(assembly_path(self._assembly), plain, place) if record else None
        for row in (row for row in self.engines if row.node not in self.hearing.lost):
            self.feed(m.NodeJoined(node=row.node, incarnation=self._case, capacity_blocks=row.capacity_blocks))
        for node in sorted(self.hearing.lost):
            self.feed(m.NodeLost(node=node))

    def play(
        self,
        schedule: Sequence[Arrival],
        *,
        progress: Callable[[int, int], None] | None = None,
        at: Iterable[tuple[int, m.RouterEvent]] = (),
    ) -> Played:
        """Open loop: each request arrives at its offset from now, whatever became of those before.

        `at` holds further events with their offsets (say, a revocation). `progress` is told (ended, all).
        Raises RunBroken with what had come until then.
        """
        rows: list[tuple[int, Arrival | m.RouterEvent]] = [(arrival[0], arrival) for arrival in schedule]
        timed = deque(sorted([*rows, *at], key=lambda row: row[0]))
        start_us = self._clock.now_us()

        def inject() -> int | None:
            """Hands in what is due; the time of the next one."""
            while timed and start_us + timed[0][0] <= self._clock.now_us():
                offset, item = timed.popleft()
                if isinstance(item, tuple):
                    self._arrive(item, start_us + offset)
                else:
                    self.feed(item)
            return start_us + timed[0][0] if timed else None

        return self._played(inject, lambda: not timed and not self._open, len(schedule), start_us, progress)

    def play_idle(self, schedule: Sequence[Arrival], *, progress: Callable[[int, int], None] | None = None) -> Played:
        """One at a time: each request arrives when the one before has ended; offsets are not looked at."""
        left = list(schedule)[::-1]
        start_us = self._clock.now_us()

        def inject() -> int | None:
            if left and not self._open:
                self._arrive(left.pop(), self._clock.now_us())
            return None

        return self._played(inject, lambda: not left and not self._open, len(schedule), start_us, progress)

    def measure_prefill(self, node: int, points: Spans, *, repeats: int, seed: int) -> Times:
        """Wall time in us of prefilling [start, end) on this node, a row per point; between cases only."""
        return self._measured(node, wire.MeasurePrefill(tuple(points), repeats, seed))

    def measure_decode(self, node: int, points: Spans, *, repeats: int, seed: int) -> Times:
        """Wall time in us of decoding after a context, a row per (context tokens, tokens); between cases only."""
        return self._measured(node, wire.MeasureDecode(tuple(points), repeats, seed))

    def measure_link(self, source: int, reader: int, *, payload_bytes: int, repeats: int) -> tuple[int, ...]:
        """Time in us at `reader` from asking `source` for this many bytes (0: a round trip) until they are there."""
        if source == reader:
            raise ConfigError(f"no link from node {source} to itself")
        return tuple(row[0] for row in self._measured(reader, wire.MeasureLink(source, payload_bytes, repeats)))

    def feed(self, event: m.RouterEvent) -> None:
        """Decides on an event now, and performs the effects; public for events of the operator."""
        if self.router is None:
            raise ConfigError("nothing is served before `reset`; begin a case first")
        now_us = self._clock.now_us()
        effects = self.router.handle(event, now_us)
        if isinstance(event, m.Arrived):
            self._decide_us[event.request.request_id] = self._clock.now_us() - now_us
        if self._log is not None:
            self._log.record(now_us, event, effects)
        for effect in effects:
            self._perform(effect)

    def wait_until(self, done: Callable[[], bool], what: str) -> None:
        """Serves until `done()`; raises RemoteError after a long silence, Interrupted if the user asked to end."""
        heard_s = time.monotonic()
        while not done():
            moved = self._round()
            if moved:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > SILENCE_S_MAX:
                raise RemoteError(f"no rank answered for {SILENCE_S_MAX:.0f} s while waiting to {what}; end the job")
            time.sleep(self._rest.seconds(moved, self._endpoint.in_motion(), self._due_in_us()))

    # ------------------------------------------------------------------ playing
    def _played(
        self,
        inject: Callable[[], int | None],
        done: Callable[[], bool],
        arrivals: int,
        start_us: int,
        progress: Callable[[int, int], None] | None,
    ) -> Played:
        first = len(self._outcomes)
        self.hearing.begin(self._clock.now_us())
        told = -1

        def ended() -> bool:
            nonlocal told
            self._next_arrival_us = inject()
            count = len(self._outcomes) - first
            if progress is not None and count != told:
                told = count
                progress(count, arrivals)
            return done()

        def result(*, complete: bool) -> Played:
            outcomes = sorted(self._outcomes[first:], key=lambda o: o.request_id)
            return Played(
                outcomes=tuple(outcomes), arrived_count=len(outcomes) + len(self._open),
                elapsed_us=self._clock.now_us() - start_us, complete=complete,
                counters={"router": dict(self._counters)}, lost=tuple(sorted(self.hearing.lost)),
                logs={} if self._log is None else {"router": self._log.to_bytes()},
            )  # fmt: skip

        try:
            self.wait_until(ended, "finish the schedule")
            played = result(complete=True)
            rows = self._report()
        except Interrupted as error:
            raise RunBroken("interrupted", result(complete=False), interrupted=True) from error
        except Exception as error:
            what = str(error) if isinstance(error, RemoteError) else f"rank 0: {type(error).__name__}: {error}"
            raise RunBroken(what, result(complete=False)) from error
        finally:
            self._next_arrival_us = None
        return replace(
            played,
            counters={**played.counters, **{f"node{row.node}": row.counters for row in rows}},
            logs={**played.logs, **{f"node{row.node}": row.log for row in rows if row.log}},
        )

    def _arrive(self, arrival: Arrival, arrival_us: int) -> None:
        request, chain, tokens = structs.replace(arrival[1], arrival_us=arrival_us), *arrival[2:]
        if self.prepare is not None:  # scopes and chain as they are at this moment, not as they were scheduled
            request, chain = self.prepare(request, tokens, arrival_us)
        if len(tokens) != request.token_count:
            raise ConfigError(
                f"request {request.request_id} has {len(tokens)} tokens, its segments say {request.token_count}"
            )
        if request.request_id in self._open:
            raise ConfigError(f"request id {request.request_id} is used twice")
        self._open.add(request.request_id)
        self._tokens[request.request_id] = np.ascontiguousarray(tokens, np.uint32).tobytes()
        self.feed(m.Arrived(request=request, chain=chain))

    def _report(self) -> list[wire.Reported]:
        self._broadcast(wire.ReportAsked())
        return self._gather(wire.Reported, "report counters")

    def _measured(self, node: int, message: wire.Message) -> Times:
        if not 0 <= node < self.node_count:
            raise ConfigError(f"node {node} is not one of the {self.node_count} nodes")
        self._send(node, message)
        rows: wire.Measured = self._gather(wire.Measured, "measure", count=1)[0]
        return rows.rows

    # ------------------------------------------------------------------ the loop
    def _round(self) -> bool:
        if self.interrupt_asked:
            raise Interrupted
        received = self._endpoint.poll()
        now_us = self._clock.now_us()
        for item in received:
            if self.hearing.heard(item.rank - 1, now_us):
                self._receive(item)
        if self.router is not None and self._clock.now_us() >= self._next_tick_us:
            self._next_tick_us = self._clock.now_us() + TICK_US
            self.feed(m.Ticked())
            for node in self.hearing.overdue(now_us):
                self._lose(node)
        return self._tell() or bool(received)

    def _due_in_us(self) -> int | None:
        tick_us = None if self.router is None else self._next_tick_us
        times = (self._endpoint.next_due_us(), self._next_arrival_us, self._held.next_us(), tick_us)
        due = [t for t in times if t is not None]
        return min(due) - self._clock.now_us() if due else None

    def _receive(self, item: Received) -> None:
        envelope = wire.decode(item.data.data)
        message = envelope.message
        self._counters["control_bytes_received"] += item.data.size
        if isinstance(message, wire.RankFailed):
            self._gone.add(message.rank)
            raise RemoteError(f"rank {message.rank}: {message.what}; {message.advice}")
        if isinstance(message, wire.Bye):
            self._gone.add(message.node + 1)
        elif not isinstance(message, wire.Deliver):
            self._replies.append(message)
        elif envelope.case != self._case or self.router is None:
            self._counters["stale_messages"] += 1
        else:
            event = message.event()
            if isinstance(event, m.PoolChanged) and event.message.node != item.rank - 1:
                self._counters["pool messages in another's name"] += 1
            else:
                self.feed(event)

    def _lose(self, node: int) -> None:
        """The node is taken for dead: the others are told, and the router decides what becomes of its requests."""
        self._gone.add(node + 1)
        self._counters["nodes lost"] += 1
        launch.forget_rank(node + 1)
        self._endpoint.drop(node + 1)
        self._broadcast(wire.NodeGone(node))
        self.feed(m.NodeLost(node=node))

    def _gather(self, kind: type, what: str, count: int | None = None) -> list[Any]:
        """One answer of this kind per worker (or `count` of them)."""
        wanted = len(self.hearing.live) if count is None else count
        found: list[Any] = []

        def complete() -> bool:
            found.extend(r for r in self._replies if isinstance(r, kind))
            self._replies = [r for r in self._replies if not isinstance(r, kind)]
            return len(found) >= wanted

        self.wait_until(complete, what)
        return found

    # ------------------------------------------------------------------ effects
    def _perform(self, effect: m.RouterEffect) -> None:
        match effect:
            case m.Dispatch(request=request, chain=chain, plan=plan, reader=reader):
                event = m.Dispatched(request=request, chain=chain, plan=plan, reader=reader)
                tokens = self._tokens.get(request.request_id) or self._text(chain)
                if tokens is None:
                    reason = "the text of a released prefix was forgotten"
                    self.feed(m.PlanRefused(request_id=request.request_id, node=plan.executor, reason=reason))
                    return
                data = wire.encode(self._case, wire.Deliver.of(event, tokens))
                self._counters["dispatched"] += 1
                self._endpoint.send_after_hop(request.ingress, plan.executor, plan.executor + 1, Channel.CONTROL, data)
            case m.AskSnapshot(node=node, incarnation=incarnation, after_seq=after_seq):
                self._counters["snapshots_asked"] += 1
                self._send(node, wire.Deliver.of(m.SnapshotAsked(incarnation=incarnation, after_seq=after_seq)))
            case m.SendPrefetch(node=node, asked=asked):
                self._counters["prefetches_sent"] += 1
                self._send(node, wire.Deliver.of(asked))
            case m.SendKeep(node=node, prefixes=prefixes):
                self._send(node, wire.Deliver.of(m.KeepPrefixes(prefixes=prefixes)))
            case m.SendDirectory(node=node, directory=directory):
                self._send(node, wire.Deliver.of(m.DirectoryChanged(directory=directory)))
            case m.Record(outcome=outcome, release_us=release_us):
                self._tokens.pop(outcome.request_id, None)
                ended = structs.replace(outcome, decide_us=self._decide_us.pop(outcome.request_id, 0))
                self._held.add(ended, release_us)
                self._tell()
            case m.Reject():
                self._counters["rejected"] += 1

    def _tell(self) -> bool:
        """The clients of answers that are due have been told; whether there were any."""
        for outcome in (due := self._held.due(self._clock.now_us())):
            self._open.discard(outcome.request_id)
            self._outcomes.append(outcome)
            if self.told is not None:
                self.told(outcome)
        return bool(due)

    def _text(self, chain: Chain) -> bytes | None:
        """The tokens of a prefix that the operator wants computed."""
        tokens = None if self.text_of is None else self.text_of(name_of(chain))
        return None if tokens is None else np.ascontiguousarray(tokens, np.uint32).tobytes()

    def _send(self, node: int, message: wire.Message) -> None:
        self._endpoint.send(node + 1, Channel.CONTROL, wire.encode(self._case, message))

    def _broadcast(self, message: wire.Message) -> None:
        for node in self.hearing.live:
            self._send(node, message)

    # ------------------------------------------------------------------ the end
    def close(self, code: int, patience_s: float) -> bool:
        """Every rank was told to leave with `code`; True if all said Bye within the time."""
        self.router, self.interrupt_asked = None, False
        self._broadcast(wire.Finish(code))
        end_s = time.monotonic() + patience_s
        while time.monotonic() < end_s and len(self._gone) < self.node_count:
            with contextlib.suppress(RemoteError):  # one more rank that failed: it is on its way out
                self._round()
            time.sleep(1e-3)
        return len(self._gone) == self.node_count
