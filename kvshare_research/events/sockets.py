"""ZMQ as engines use it: a publisher with a replay socket, and the two client sockets of a watcher."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, final

import zmq

from kvshare_research.core.errors import ConfigError

from .frames import END_SEQ, SEQ_BYTES, Event, encode, seq_frame


def _bound(context: Any, kind: int, endpoint: str, key: str) -> Any:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 100_000)  # as engines do: beyond it a slow subscriber loses frames
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close()
        raise ConfigError(f"{key} `{endpoint}` cannot be bound: {error.strerror}") from None
    return socket


def connected(context: Any, kind: int, endpoint: str, key: str) -> Any:
    """A socket that keeps trying to reach `endpoint`; ConfigError if that is no address."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 100_000)
    if kind == zmq.SUB:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close()
        reason = f"is no address to connect to: {error.strerror}; expected e.g. tcp://host:5557"
        raise ConfigError(f"{key} `{endpoint}` {reason}") from None
    return socket


@final
class Publisher:
    """Sends batches of events as `[topic, number, payload]` and repeats the last `kept_max` of them on request."""

    def __init__(
        self, endpoint: str, replay_endpoint: str | None = None, *, topic: str = "", generation: str = "map",
        kept_max: int = 10_000,
    ) -> None:  # fmt: skip
        self._topic, self._generation, self._seq = topic.encode(), generation, 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept_max)
        self._context: Any = zmq.Context()  # its own: ending it waits for what this publisher has sent, and only that
        self._live = _bound(self._context, zmq.PUB, endpoint, "events.endpoint")
        self._replay = _bound(self._context, zmq.ROUTER, replay_endpoint, "events.replay") if replay_endpoint else None
        self.endpoint = self._live.getsockopt_string(zmq.LAST_ENDPOINT)  # with the port, where `*` was asked for
        self.replay_endpoint = self._replay.getsockopt_string(zmq.LAST_ENDPOINT) if self._replay else None

    def publish(self, events: Sequence[Event], time_s: float, rank: int | None = 0) -> int:
        """The events are on their way as one batch; returns its number."""
        return self.publish_payload(encode(time_s, events, rank, self._generation))

    def publish_payload(self, payload: bytes) -> int:
        """As `publish`, of bytes already encoded."""
        seq, self._seq = self._seq, self._seq + 1
        self._kept.append((seq, payload))
        self._live.send_multipart([self._topic, seq_frame(seq), payload])
        self.answer()
        return seq

    def skip(self, payload: bytes) -> int:
        """A batch that is numbered and kept, but lost on the live way: for tests and demonstrations of loss."""
        seq, self._seq = self._seq, self._seq + 1
        self._kept.append((seq, payload))
        return seq

    def answer(self, wait_ms: int = 0) -> int:
        """Requests for replay that have come, or come within the wait, are answered; returns how many."""
        answered = 0
        while self._replay is not None and self._replay.poll(wait_ms):
            client, *rest = self._replay.recv_multipart()
            start = int.from_bytes(rest[-1], "big") if rest and len(rest[-1]) == SEQ_BYTES else 0
            for seq, payload in self._kept:
                if seq >= start:
                    self._replay.send_multipart([client, b"", seq_frame(seq), payload])
            self._replay.send_multipart([client, b"", seq_frame(END_SEQ), b""])
            answered += 1
            wait_ms = 0
        return answered

    def close(self, linger_ms: int = 0) -> None:
        """Both sockets are closed, after at most so long for what is under way."""
        self.answer()
        for socket in (self._live, self._replay):
            if socket is not None:
                socket.close(linger_ms)
        self._context.term()
