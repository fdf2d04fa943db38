"""A worker rank: one thread polls MPI, owns the state machine and moves blocks; a second one runs the engine.

Read `_perform` for what each effect does and `_receive` for what each message means.
The router is rank 0, node n is rank n + 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvshare_research import launch
from kvshare_research.core import messages as m
from kvshare_research.core.errors import RemoteError
from kvshare_research.driver.assembly import Assembly, Config, Place, assembly_path
from kvshare_research.driver.blocks import UNSENT_BYTES_MAX, Blocks
from kvshare_research.driver.clock import Clock, Rest
from kvshare_research.driver.compute import ComputeThread, Then
from kvshare_research.driver.jobs import Tokens, computed, decode_times_us, prefill_times_us
from kvshare_research.driver.log import EventLog
from kvshare_research.driver.probe import Prober
from kvshare_research.transport import wire
from kvshare_research.transport.frames import FRAME_BYTES_MAX
from kvshare_research.transport.link import UniformLink
from kvshare_research.transport.mpi import Channel, Endpoint, Received
from kvshare_research.transport.shaped import ShapedEndpoint

if TYPE_CHECKING:
    from kvshare_research.core.worker import Worker
    from kvshare_research.engine.base import Engine
    from kvshare_research.events.publish import Tap

ROUTER_RANK: Final = 0
TICK_US: Final = 100_000
_FRAMES_PER_ROUND: Final = 4  # then polling has its turn


class RouterLost(RemoteError):
    """There is nobody left to work for."""


class WorkerLoop:
    """Serves cases until the router says Finish. Raises what the engine or the state machine raised."""

    def __init__(self, endpoint: Endpoint, assembly: Assembly, *, node: int, node_count: int, local_rank: int) -> None:
        self.node = node
        self._node_count = node_count
        self._local_rank = local_rank
        self._assembly = assembly
        self._raw = endpoint
        self._clock = Clock()
        self._endpoint = ShapedEndpoint(endpoint, UniformLink(), self._clock.now_us)
        self._compute = ComputeThread()
        self.router_lives: Callable[[], bool] | None = None
        self._rest = Rest()
        self._finish: int | None = None
        self._engine: Engine | None = None
        self._worker: Worker | None = None
        self._log: EventLog | None = None
        self._tap: Tap | None = None
        self._begin(0)

    def _begin(self, case: int) -> None:
        self._case = case
        self._counters: Counter[str] = Counter()
        self._tokens: dict[int, Tokens] = {}
        self._ingress: dict[int, int] = {}
        self._first_token: dict[int, int] = {}
        self._revision = 0
        self._next_tick_us = TICK_US
        self._prober = Prober(self._clock.now_us)
        self._blocks: Blocks | None = None

    # ------------------------------------------------------------------ the loop
    def serve(self) -> int:
        """The exit code, once the router has ended the job."""
        while self._finish is None:
            if self.router_lives is not None and not self.router_lives():
                raise RouterLost("rank 0 is dead")
            moved = self._round()
            self._compute.finish_one(self._rest.seconds(moved, self._endpoint.in_motion(), self._due_in_us()))
        if self._tap is not None:
            self._tap.close()
        self._to_router(wire.Bye(self.node))
        return self._finish

    def stop(self, patience_s: float) -> None:
        """The compute thread has ended, unless a kernel outlasts the time."""
        self._compute.stop(patience_s)

    def _round(self) -> bool:
        received = self._endpoint.poll()
        for item in received:
            self._receive(item)
        moved = bool(received)
        while self._compute.finish_one(0):
            moved = True
        if self._blocks is not None:
            moved |= self._send_frames(self._blocks)
            for source, event in self._blocks.expired():
                self._to_node(source, wire.FetchCancelled(event.fetch_id))
                self._feed(event)
        if self._worker is not None and self._clock.now_us() >= self._next_tick_us:
            self._tick(self._worker)
        return moved

    def _tick(self, worker: Worker) -> None:
        self._next_tick_us = self._clock.now_us() + TICK_US
        self._feed(m.Ticked())
        totals = worker.ledger.node
        load = m.LoadReported(node=self.node, used_blocks=totals.used, capacity_blocks=totals.capacity)
        self._to_router(wire.Deliver.of(load))

    def _due_in_us(self) -> int | None:
        deadline_us = None if self._blocks is None else self._blocks.next_deadline_us()
        tick_us = None if self._worker is None else self._next_tick_us
        due = [t for t in (self._endpoint.next_due_us(), deadline_us, tick_us) if t is not None]
        return min(due) - self._clock.now_us() if due else None

    def _send_frames(self, blocks: Blocks) -> bool:
        moved = False
        for _ in range(_FRAMES_PER_ROUND):
            if self._endpoint.unsent_bytes() >= UNSENT_BYTES_MAX:
                break
            frame = blocks.next_frame(link_idle=self._endpoint.unsent_bytes() == 0)
            if frame is None:
                break
            moved = True
            if isinstance(frame, m.FetchSent):
                self._feed(frame)
            else:
                asker, data = frame
                self._endpoint.send_over(self.node, asker, asker + 1, Channel.BLOCKS, data)
        return moved

    # ------------------------------------------------------------------ messages
    def _to_router(self, message: wire.Message) -> None:
        self._endpoint.send(ROUTER_RANK, Channel.CONTROL, wire.encode(self._case, message))

    def _answer(self, request_id: int, event: Any) -> None:
        """To the router as the client at its ingress node would get it."""
        data = wire.encode(self._case, wire.Deliver.of(event))
        ingress = self._ingress.get(request_id, self.node)
        self._endpoint.send_after_hop(self.node, ingress, ROUTER_RANK, Channel.CONTROL, data)

    def _to_node(self, node: int, message: wire.Message) -> None:
        data = wire.encode(self._case, message)
        self._counters["control_bytes_sent"] += len(data)
        self._endpoint.send_over(self.node, node, node + 1, Channel.CONTROL, data)

    def _receive(self, item: Received) -> None:
        sender = item.rank - 1
        if item.channel == Channel.BLOCKS:
            landed = None if self._blocks is None else self._blocks.land(sender, item.data)
            if landed is not None:
                if not landed.intact:
                    self._to_node(sender, wire.FetchCancelled(landed.fetch_id))
                self._feed(landed)
            return
        envelope = wire.decode(item.data.data)
        message = envelope.message
        if item.rank == ROUTER_RANK and self._command(message):
            return
        if envelope.case != self._case:
            self._counters["stale_messages"] += 1
            return
        if isinstance(message, wire.Deliver):
            self._deliver(message, sender)
        elif isinstance(message, wire.FetchRefused):
            if self._blocks is not None and self._blocks.stop_landing(message.fetch_id, sender) is not None:
                self._counters["refusals_received"] += 1
                self._feed(m.FetchFailed(fetch_id=message.fetch_id, reason=message.reason))
        elif isinstance(message, wire.FetchCancelled):
            sent = None if self._blocks is None else self._blocks.stop_sending(message.fetch_id, sender)
            if sent is not None:
                self._feed(sent)
        elif isinstance(message, wire.ProbeAsked):
            for start in range(0, max(1, message.payload_bytes), FRAME_BYTES_MAX):
                part = bytes(min(FRAME_BYTES_MAX, message.payload_bytes - start))
                self._to_node(sender, wire.ProbeAnswered(message.probe, part))
        elif isinstance(message, wire.ProbeAnswered):
            self._probe_on(self._prober.answered(message.probe, len(message.payload)))
        else:
            raise RemoteError(f"rank {item.rank} sent a {type(message).__name__}, which is not for a worker")

    def _deliver(self, message: wire.Deliver, sender: int) -> None:
        event = message.event()
        # Another worker may ask for blocks, in its own name, and nothing else.
        if sender >= 0 and not (isinstance(event, m.FetchAsked) and event.asker == sender):
            raise RemoteError(f"node {sender} sent a {message.kind} that only the router or another node may send")
        if isinstance(event, m.Dispatched):
            request = event.request
            self._tokens[request.request_id] = np.frombuffer(message.tokens, np.uint32)
            if self._tap is not None:
                self._tap.seen(event.chain, self._tokens[request.request_id])
            self._ingress[request.request_id] = request.ingress
        elif isinstance(event, m.DirectoryChanged):
            self._revision = max(self._revision, event.directory.revision)
        self._feed(event)

    def _command(self, message: wire.Message) -> bool:
        """The router's word to this driver; False if the message is for the state machine."""
        if isinstance(message, wire.Finish):
            self._finish = message.code
        elif isinstance(message, wire.NodeGone):
            self._lose(message.node)
        elif isinstance(message, wire.LoadEngine):
            self._load(message.config)
        elif isinstance(message, wire.Reset):
            self._reset(message)
        elif isinstance(message, wire.ReportAsked):
            log = b"" if self._log is None else self._log.to_bytes()
            self._to_router(wire.Reported(self.node, self._counted(), log))
        elif isinstance(message, wire.MeasurePrefill):
            self._measure(lambda engine: prefill_times_us(engine, message))
        elif isinstance(message, wire.MeasureDecode):
            self._measure(lambda engine: decode_times_us(engine, message))
        elif isinstance(message, wire.MeasureLink):
            self._probe_on(self._prober.start(message))
        else:
            return False
        return True

    def _lose(self, node: int) -> None:
        """A node is dead: requests that wait for its blocks compute them, and blocks it was sent are free again."""
        launch.forget_rank(node + 1)
        self._endpoint.drop(node + 1)
        if self._blocks is not None:
            for events in self._blocks.forget(node):
                for event in events:
                    self._feed(event)

    # ------------------------------------------------------------------ commands
    def _load(self, config: Config) -> None:
        """In the compute thread, so that a job can end while a large model loads."""

        def load() -> Then:
            engine = self._assembly.engine(config, self._local_rank)
            return lambda: self._use(engine)

        self._compute.submit(load)

    def _use(self, engine: Engine) -> None:
        self._engine = engine
        pool, spec = engine.pool, engine.spec
        self._to_router(
            wire.EngineReady(
                self.node, pool.block_count, pool.block_bytes, pool.layer_count, spec.name, spec.fingerprint
            )
        )

    def _reset(self, message: wire.Reset) -> None:
        """A fresh worker, a zeroed pool, free links, a clock at zero."""
        engine = self._loaded()
        while not self._compute.is_idle:
            self._compute.finish_one(0.1)
        engine.reset()
        self._clock.restart()
        self._begin(message.case)
        place = Place(
            node=self.node, node_count=self._node_count, capacity_blocks=engine.pool.block_count,
            block_bytes=engine.pool.block_bytes, incarnation=message.case,
        )  # fmt: skip
        self._worker = self._assembly.worker(message.config, place)
        self._revision = self._worker.directory.revision
        self._blocks = Blocks(message.case, engine.pool, self._clock.now_us, self._counters)
        link = self._assembly.link(message.config)
        inner = self._assembly.wrap(self._raw, message.config, self.node)
        self._endpoint = ShapedEndpoint(inner, link, self._clock.now_us)
        self._log = EventLog(assembly_path(self._assembly), message.config, place) if message.record else None
        self._tap = self._tap or self._assembly.tap(message.config, place)
        if self._tap is not None:
            self._tap.begin()
        self._to_router(wire.ResetDone(self.node, message.case))

    def _counted(self) -> dict[str, int]:
        """What this rank and its machine have counted in this case."""
        if self._worker is None:
            return dict(self._counters)
        prefetched = {f"prefetch: {name}": count for name, count in self._worker.prefetching.counters.items()}
        collisions = self._worker.serving.collisions
        return {**self._counters, **prefetched, **({"collisions_refused": collisions} if collisions else {})}

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise RemoteError("asked to serve before an engine was loaded; call `Cluster.load` first")
        return self._engine

    def _measure(self, timed: Callable[[Engine], tuple[tuple[int, ...], ...]]) -> None:
        engine = self._loaded()

        def measure() -> Then:
            rows = timed(engine)
            return lambda: self._to_router(wire.Measured(self.node, rows))

        self._compute.submit(measure)

    def _probe_on(self, step: Prober.Step) -> None:
        if isinstance(step, wire.Measured):
            self._to_router(wire.Measured(self.node, step.rows))
        elif step is not None:
            source, ask = step
            self._to_node(source, ask)

    # ------------------------------------------------------------------ the state machine
    def _feed(self, event: m.WorkerEvent) -> None:
        """Decides on the event and performs what was decided."""
        if self._worker is None:
            self._counters["stale_messages"] += 1
            return
        if isinstance(event, m.FetchFailed):
            self._counters[f"fetches failed: {event.reason}"] += 1
        now_us = self._clock.now_us()
        effects = self._worker.handle(event, now_us)
        if self._log is not None:
            self._log.record(now_us, event, effects)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: m.WorkerEffect) -> None:
        blocks = self._blocks
        assert blocks is not None
        match effect:
            case m.Publish(message=message):
                self._to_router(wire.Deliver.of(m.PoolChanged(message=message)))
                if self._tap is not None:
                    self._tap.published(message)
            case m.Fetch():
                blocks.start_landing(effect)
                ask = m.FetchAsked(
                    fetch_id=effect.fetch_id, asker=self.node, reader=effect.reader,
                    hashes=effect.hashes, revision=self._revision, marks=effect.marks, background=effect.background,
                )  # fmt: skip
                self._to_node(effect.source, wire.Deliver.of(ask))
            case m.CancelFetch(fetch_id=fetch_id):
                source = blocks.stop_landing(fetch_id)
                if source is not None:
                    self._to_node(source, wire.FetchCancelled(fetch_id))
            case m.SendBlocks():
                blocks.start_sending(effect)
            case m.RefuseFetch(fetch_id=fetch_id, asker=asker, reason=reason):
                self._counters["refusals_sent"] += 1
                self._to_node(asker, wire.FetchRefused(fetch_id, reason))
            case m.Prefill() | m.Decode():
                self._start_compute(effect)
            case m.ReportFirstToken(request_id=request_id):
                self._answer(request_id, m.FirstToken(request_id=request_id, node=self.node))
            case m.ReportCompleted(request_id=request_id, outcome=outcome):
                self._answer(request_id, m.Completed(request_id=request_id, outcome=outcome))
                self._forget(request_id)
            case m.ReturnPlan(request_id=request_id, reason=reason):
                self._answer(request_id, m.PlanRefused(request_id=request_id, node=self.node, reason=reason))
                self._forget(request_id)
            case m.ReportLink(source=source, bytes_moved=bytes_moved, elapsed_us=elapsed_us):
                measured = m.LinkMeasured(
                    source=source, reader=self.node, bytes_moved=bytes_moved, elapsed_us=elapsed_us
                )
                self._to_router(wire.Deliver.of(measured))
            case m.ReportPrefetch():
                ended = m.PrefetchEnded(
                    prefetch_id=effect.prefetch_id, node=self.node, landed_blocks=effect.landed_blocks,
                    bytes_moved=effect.bytes_moved, reason=effect.reason,
                )  # fmt: skip
                self._to_router(wire.Deliver.of(ended))
            case m.ReportKept(names=names):
                self._to_router(wire.Deliver.of(m.PrefixesKept(node=self.node, names=names)))
            case m.AcknowledgeDirectory(revision=revision):
                self._to_router(wire.Deliver.of(m.DirectoryAcknowledged(node=self.node, revision=revision)))

    def _forget(self, request_id: int) -> None:
        for table in (self._tokens, self._ingress, self._first_token):
            table.pop(request_id, None)

    def _start_compute(self, effect: m.Prefill | m.Decode) -> None:
        engine, case = self._loaded(), self._case
        tokens, first = self._tokens[effect.request_id], self._first_token.get(effect.request_id, 0)

        def compute() -> Then:
            event = computed(engine, effect, tokens, first)
            return lambda: self._computed(case, event)

        self._compute.submit(compute)

    def _computed(self, case: int, event: m.WorkerEvent) -> None:
        if case != self._case:
            return
        if isinstance(event, m.PrefillDone) and event.first_token is not None:
            self._first_token[event.request_id] = event.first_token
        self._feed(event)
