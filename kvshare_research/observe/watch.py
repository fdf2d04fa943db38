"""The watcher: sockets in, frames in order, events into an index, an account out. No frame can stop it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import zmq

from kvshare_research.core.errors import ConfigError, RemoteError
from kvshare_research.core.ports import Index
from kvshare_research.events.frames import END_SEQ, SEQ_BYTES, decode, seq_frame
from kvshare_research.events.sockets import connected
from kvshare_research.guard.keys import KeyRing, RootSecret

from .fleet import Fleet, Prices
from .stream import Apply, Replay, Stream


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """What to watch and how to price it. `endpoint` and `replay` are one address or a list, in the same order."""

    endpoint: str | tuple[str, ...]
    replay: str | tuple[str, ...] | None = None
    unit_tokens: int = 16
    nodes_max: int = 256
    block_bytes: int
    prefill_us_per_token: float
    rtt_us: int
    rate_mbit: float
    report_every_s: float = 10.0
    stop_after_s: float | None = None
    replay_timeout_s: float = 5.0
    out: str | None = None

    def __post_init__(self) -> None:
        if self.unit_tokens < 1 or self.nodes_max < 1 or self.rate_mbit <= 0:
            raise ConfigError("observe: unit_tokens, nodes_max and rate_mbit must be positive")
        if self.replays and len(self.replays) != len(self.endpoints):
            counts = f"{len(self.replays)} addresses, observe.endpoint {len(self.endpoints)}"
            raise ConfigError(f"observe.replay has {counts}; expected none or one for each")

    @property
    def endpoints(self) -> tuple[str, ...]:
        """`endpoint` as a list."""
        return (self.endpoint,) if isinstance(self.endpoint, str) else self.endpoint

    @property
    def replays(self) -> tuple[str, ...]:
        """`replay` as a list; empty if there is none."""
        return (self.replay,) if isinstance(self.replay, str) else self.replay or ()


@dataclass(slots=True)
class _Source:
    """One address, its sockets, and the streams (by topic) that come from it."""

    endpoint: str
    live: Any
    replay: Any | None
    streams: dict[bytes, Stream] = field(default_factory=dict)
    heard: bool = False
    asked_topic: bytes | None = None
    answer: list[tuple[int, bytes]] = field(default_factory=list)
    asked_s: float = 0.0


@final
class Watcher:
    """`step` reads what has come; `report` is the account so far. Give the clock, in seconds since 1970."""

    def __init__(self, given: Observe, index: Index, seed: int, clock_s: Callable[[], float] = time.time) -> None:
        self.given, self._clock_s = given, clock_s
        prices = Prices(
            block_bytes=given.block_bytes,
            prefill_us_per_block=given.prefill_us_per_token * given.unit_tokens,
            rtt_us=given.rtt_us,
            rate_bits_per_s=given.rate_mbit * 1e6,
        )
        ring = KeyRing(RootSecret.from_seed(seed))
        self.fleet = Fleet(index.new_store(given.nodes_max), given.nodes_max, given.unit_tokens, prices, ring)
        self.names: dict[str, int] = {}  # endpoint, topic and rank of each node
        self.counters: Counter[str] = Counter()
        self._poller, self._sources = zmq.Poller(), []
        context: Any = zmq.Context.instance()
        for at, endpoint in enumerate(given.endpoints):
            live = connected(context, zmq.SUB, endpoint, "observe.endpoint")
            replay = connected(context, zmq.DEALER, given.replays[at], "observe.replay") if given.replays else None
            self._sources.append(_Source(endpoint, live, replay))
            for socket in (live, replay):
                if socket is not None:
                    self._poller.register(socket, zmq.POLLIN)

    def step(self, wait_ms: int) -> int:
        """Everything that has come, or comes first within the wait, is applied; returns how many frames."""
        count = 0
        ready = dict(self._poller.poll(wait_ms))
        for source in self._sources:
            while source.live in ready and source.live.poll(0):
                self._live(source, source.live.recv_multipart())
                count += 1
            while source.replay is not None and source.replay in ready and source.replay.poll(0):
                self._answered(source, source.replay.recv_multipart())
                count += 1
            waited_s = self._clock_s() - source.asked_s
            if source.asked_topic is not None and waited_s > self.given.replay_timeout_s:
                self.counters["replay without an end"] += 1
                self._end_replay(source)
        return count

    def report(self) -> dict[str, Any]:
        """Account, streams and silence, as a plain tree."""
        streams = {
            f"{s.endpoint} {topic.decode(errors='replace')}".strip(): {"next_seq": stream.next_seq, **stream.counters}
            for s in self._sources
            for topic, stream in s.streams.items()
        }
        account = self.fleet.report()
        per_node = {key: account.pop(key) for key in ("held_blocks", "lag_s", "waiting_for_parents")}
        return {
            "nodes": {name: {key: rows[node] for key, rows in per_node.items()} for name, node in self.names.items()},
            **account,
            "streams": streams,
            "silent": [s.endpoint for s in self._sources if not s.heard],
            "frames": dict(self.counters),
        }

    def close(self) -> None:
        """All sockets are closed."""
        for source in self._sources:
            for socket in (source.live, source.replay):
                if socket is not None:
                    socket.close()

    # ------------------------------------------------------------- steps
    def _live(self, source: _Source, parts: list[bytes]) -> None:
        source.heard = True
        if len(parts) != 3 or len(parts[1]) != SEQ_BYTES:
            self.counters["frame of another shape"] += 1
            return
        topic, seq, payload = parts[0], int.from_bytes(parts[1], "big"), parts[2]
        stream = source.streams.setdefault(topic, Stream(can_replay=source.replay is not None))
        if source.asked_topic not in (None, topic):
            stream.can_replay = False  # one replay socket serves one topic at a time
        todo = stream.live(seq, payload)
        if isinstance(todo, Replay) and source.replay is not None:
            source.asked_topic, source.asked_s, source.answer = topic, self._clock_s(), []
            source.replay.send_multipart([b"", seq_frame(todo.start_seq)])
        elif isinstance(todo, Apply):
            self._apply(source, topic, todo)

    def _answered(self, source: _Source, parts: list[bytes]) -> None:
        if source.asked_topic is None or len(parts) < 2 or len(parts[-2]) != SEQ_BYTES:
            self.counters["replay frame of another shape"] += 1
            return
        seq = int.from_bytes(parts[-2], "big")
        if seq == END_SEQ:
            self._end_replay(source)
        else:
            source.answer.append((seq, parts[-1]))

    def _end_replay(self, source: _Source) -> None:
        topic = source.asked_topic
        assert topic is not None
        source.asked_topic = None
        self._apply(source, topic, source.streams[topic].replayed(source.answer))

    def _apply(self, source: _Source, topic: bytes, todo: Apply) -> None:
        prefix = f"{source.endpoint} {topic.decode(errors='replace')}".strip()
        if todo.restart:
            for name, node in self.names.items():
                if name == prefix or name.startswith(f"{prefix} rank "):
                    self.fleet.forget(node)
        for payload in todo.payloads:
            try:
                batch = decode(payload)
            except RemoteError:
                self.counters["frame that cannot be read"] += 1
                continue
            name = prefix if not batch.rank else f"{prefix} rank {batch.rank}"
            node = self.names.setdefault(name, len(self.names))
            if node >= self.given.nodes_max:
                self.counters["nodes beyond nodes_max"] += 1
                del self.names[name]
                continue
            self.fleet.apply(node, batch, self._clock_s(), _model(topic))
            self.counters["batches"] += 1


def _model(topic: bytes) -> str:
    """The model that a topic names, in the form `kv@<pod>@<model>` that indexers agree on; empty if it names none."""
    parts = topic.decode(errors="replace").split("@", 2)
    return parts[2] if len(parts) == 3 and parts[0] == "kv" else ""
