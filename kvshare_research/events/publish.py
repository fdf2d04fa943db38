"""A worker's tap: its pool messages leave the job as KV events, so that a third party's indexer can follow us.

For interoperation only, and off by default. Token ids on the wire are the prompts themselves, readable by whoever may
connect: those of public blocks by default. Everything else travels as hashes, which mean nothing without the key.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Chain
from kvshare_research.core.poollog import Heartbeat, PoolMessage, Snapshot

from .bridge import Bridge
from .frames import Cleared, Event

if TYPE_CHECKING:
    from .sockets import Publisher

SILENCE_S = 1.0  # then an empty batch says how far the numbers have come, so that a lost last one is noticed
LINGER_MS = 2000  # for what is under way when the job ends


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Whether and where workers publish. `endpoint` and `replay` are node 0's; node n's port is n higher."""

    publish: bool
    endpoint: str
    replay: str | None = None
    topic: str = ""
    generation: Literal["map", "array"] = "map"
    tokens: Literal["public", "all"] = "public"

    def __post_init__(self) -> None:
        for key, endpoint in (("endpoint", self.endpoint), ("replay", self.replay)):
            if endpoint is not None and _parts(endpoint) is None:
                raise ConfigError(
                    f"`events.{key}` is `{endpoint}`, expected e.g. tcp://127.0.0.1:5557 or ipc:///run/kv"
                )

    def check(self, directory: Directory) -> None:
        """ConfigError where the prompts of several tenants would be told to whoever listens."""
        if self.publish and self.tokens == "all" and len(directory.tenants) > 1:
            served = f"{len(directory.tenants)} tenants are served"
            raise ConfigError(f"`events.tokens` is `all`, but {served}, whose prompts must not meet; expected `public`")

    def tap(self, node: int, block_tokens: int, directory: Directory) -> Tap | None:
        """The open sockets of this node, or None where nothing is published. ConfigError if they cannot be bound."""
        self.check(directory)
        if not self.publish:
            return None
        from .sockets import Publisher

        publisher = Publisher(
            of_node(self.endpoint, node), None if self.replay is None else of_node(self.replay, node),
            topic=self.topic, generation=self.generation,
        )  # fmt: skip
        return Tap(publisher, Bridge(block_tokens, all_tokens=self.tokens == "all"), node)


@final
class Tap:
    """Publishes what one worker writes in its journal, each entry once, whatever it repeats to its router."""

    def __init__(
        self, publisher: Publisher, bridge: Bridge, node: int, clock_s: Callable[[], float] = time.time
    ) -> None:
        self._publisher, self._bridge, self._node, self._clock_s = publisher, bridge, node, clock_s
        self._last = (0, 0)
        self._told_s = 0.0

    def begin(self) -> None:
        """The pool is empty: a case begins, with a journal of its own."""
        self._last = (0, 0)
        self._publish((Cleared(),))

    def seen(self, chain: Chain, tokens: NDArray[np.uint32]) -> None:
        """The prompt of a request; its blocks may be published from now on."""
        self._bridge.seen(chain, tokens)

    def published(self, message: PoolMessage) -> None:
        """The message is on its way to whoever listens, unless it repeats an entry; who asked for a replay has it."""
        at = (message.incarnation, message.seq)
        if isinstance(message.body, Heartbeat | Snapshot):
            if self._clock_s() - self._told_s >= SILENCE_S:
                self._publish(())
            self._publisher.answer()
        elif at > self._last:
            self._last = at
            self._publish(self._bridge.events(message))

    def close(self) -> None:
        """What was published has left, as far as anybody took it in time."""
        self._publisher.close(LINGER_MS)

    def _publish(self, events: tuple[Event, ...]) -> None:
        self._told_s = self._clock_s()
        self._publisher.publish(events, self._told_s, self._node)


def of_node(endpoint: str, node: int) -> str:
    """The address of a node: a port that is so much higher, or a path with the node's number."""
    parts = _parts(endpoint)
    assert parts is not None
    before, port = parts
    return f"{before}:{port + node}" if port else f"{before}-{node}"


def _parts(endpoint: str) -> tuple[str, int] | None:
    """(all before the port, port) of a TCP address, (path, 0) of a local one; None if nobody could know the address."""
    before, _, port = endpoint.rpartition(":")
    if endpoint.startswith("tcp://") and before and port.isdigit() and int(port):
        return before, int(port)
    return (endpoint, 0) if endpoint.startswith("ipc://") and len(endpoint) > len("ipc://") else None
