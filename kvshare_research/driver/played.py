"""What came of a schedule of requests on real ranks, whole or broken off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvshare_research.core.errors import RemoteError
from kvshare_research.core.nouns import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a schedule. `counters` and `logs` are those of the whole case, by `router` and `node<i>`."""

    outcomes: tuple[Outcome, ...]  # by request id
    arrived_count: int
    elapsed_us: int
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    logs: Mapping[str, bytes] = field(default_factory=dict)  # empty unless the case is recorded
    complete: bool = True
    lost: tuple[int, ...] = ()  # nodes that died; what they were to serve was served elsewhere, or rejected


class RunBroken(RemoteError):
    """The run ended early; `partial` holds what had come until then, to be written and marked partial."""

    def __init__(self, message: str, partial: Played, *, interrupted: bool = False) -> None:
        super().__init__(message)
        self.partial = partial
        self.interrupted = interrupted


class Interrupted(Exception):
    """The user asked the job to end."""
