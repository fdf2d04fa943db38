"""The order of one publisher's frames: what to apply, when to ask for a replay, when the engine has restarted. Pure.

Engines number batches from 0 and start again at 0 when they restart; a live subscription keeps the order and may lose
frames; the replay socket repeats what the publisher still has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Apply:
    """These payloads come next; `restart` says that nothing known of the publisher holds any more."""

    payloads: tuple[bytes, ...]
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """Ask for all frames from `start_seq` on."""

    start_seq: int


@dataclass(slots=True)
class Stream:
    """`next_seq` is the number of the frame that comes next. Counters: lost, restarted, gaps, replayed, repeated."""

    can_replay: bool
    next_seq: int = 0
    started: bool = False
    waiting: list[tuple[int, bytes]] = field(default_factory=list)  # live frames that came during a replay
    replaying: bool = False
    counters: Counter[str] = field(default_factory=Counter)

    def live(self, seq: int, payload: bytes) -> Apply | Replay | None:
        """A frame of the subscription; None: kept until the replay under way has ended."""
        if self.replaying:
            self.waiting.append((seq, payload))
            return None
        if seq < self.next_seq:
            self.counters["restarted"] += 1
            self.next_seq = 0
            if seq == 0 or not self.can_replay:
                self.counters["lost"] += seq
                return self._took(seq, payload, restart=True)
        gap, self.started = seq - self.next_seq, True
        if gap and self.can_replay:
            self.counters["gaps"] += 1
            self.waiting.append((seq, payload))
            self.replaying = True
            return Replay(self.next_seq)
        self.counters["lost"] += gap
        return self._took(seq, payload, restart=False)

    def replayed(self, frames: Sequence[tuple[int, bytes]]) -> Apply:
        """The answer to a replay; an empty one means that none came. Live frames that waited follow."""
        self.replaying = False
        wanted = self.next_seq
        oldest = min((seq for seq, _ in [*frames, *self.waiting]), default=wanted)
        payloads = []
        for seq, payload in sorted([*frames, *self.waiting], key=lambda f: f[0]):
            if seq < self.next_seq:
                self.counters["repeated"] += 1
                continue
            self.counters["lost"] += seq - self.next_seq
            payloads.append(payload)
            self.next_seq = seq + 1
        self.counters["replayed"] += len(frames)
        self.waiting.clear()
        # What was lost may have removed blocks: only what is still told can be believed.
        return Apply(tuple(payloads), restart=wanted == 0 or oldest > wanted)

    def _took(self, seq: int, payload: bytes, *, restart: bool) -> Apply:
        self.started, self.next_seq = True, seq + 1
        return Apply((payload,), restart)
