"""The recorded inputs of one state machine with digests of its effects: enough to decide everything again.

Lengths and hashes only: tokens become zeros and logits nothing, in the inputs and before effects are digested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import xxhash
from msgspec import Raw, Struct
from msgspec.structs import replace

from kvshare_research.core import messages as m
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Outcome
from kvshare_research.driver.assembly import Place
from kvshare_research.transport.wire import encode_core

LOG_VERSION = 1


class Entry(Struct, array_like=True, frozen=True):
    """One input and what was decided on it."""

    now_us: int
    kind: str
    body: Raw
    effects_digest: bytes


class RecordedLog(Struct, frozen=True):
    """All inputs of one machine since it was built."""

    version: int
    assembly: str
    config: dict[str, Any]
    place: Place
    entries: tuple[Entry, ...]


def _bare(outcome: Outcome) -> Outcome:
    return replace(outcome, output_tokens=(0,) * len(outcome.output_tokens), logit_fingerprint=())


def redacted(item: Any) -> Any:
    """The event or effect without token values and logits; lengths and presence stay."""
    if isinstance(item, m.PrefillDone):
        return replace(item, first_token=None if item.first_token is None else 0, logit_fingerprint=())
    if isinstance(item, m.DecodeDone):
        return replace(item, tokens=(0,) * len(item.tokens))
    if isinstance(item, m.Completed | m.ReportCompleted | m.Record):
        return replace(item, outcome=_bare(item.outcome))
    return item


def digest(effects: Sequence[Any]) -> bytes:
    """64 bits that differ for different effects (redacted), in order."""
    state = xxhash.xxh3_64()
    for effect in effects:
        body = encode_core(redacted(effect))
        state.update(f"{type(effect).__name__}:{len(body)}:".encode())
        state.update(body)
    return state.digest()


class EventLog:
    """Collects entries in memory; one per machine and case."""

    def __init__(self, assembly: str, config: dict[str, Any], place: Place) -> None:
        self._head = (assembly, config, place)
        self._entries: list[Entry] = []

    def record(self, now_us: int, event: Any, effects: Sequence[Any]) -> None:
        """The event was handed in at `now_us` and gave these effects."""
        body = Raw(encode_core(redacted(event)))
        self._entries.append(Entry(now_us, type(event).__name__, body, digest(effects)))

    def to_bytes(self) -> bytes:
        """The file: one msgpack object."""
        assembly, config, place = self._head
        return msgspec.msgpack.encode(RecordedLog(LOG_VERSION, assembly, config, place, tuple(self._entries)))


def read_log(data: bytes) -> RecordedLog:
    """The log; raises ConfigError where the bytes are none."""
    try:
        log = msgspec.msgpack.decode(data, type=RecordedLog)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"not a recorded log: {error}") from error
    if log.version != LOG_VERSION:
        raise ConfigError(f"log of version `{log.version}`, expected `{LOG_VERSION}`: replay it with its version")
    return log
