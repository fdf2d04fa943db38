"""The worker's side of the index protocol: the one writer of its log, and its last entries for who missed some."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

from .poollog import Heartbeat, PoolEvent, PoolMessage, Snapshot

Rows = tuple[tuple[int, bytes, bytes | None, int], ...]  # (tier, hash, parent, copies)


@final
class Journal:
    """Numbers entries from 1 within an incarnation and remembers the last `kept_max` of them.

    A worker that restarts must start a larger incarnation than any it had before (a driver gives it: a persisted
    counter, or the start time).
    """

    def __init__(self, node: int, incarnation: int, kept_max: int = 10_000) -> None:
        self.node = node
        self.incarnation = incarnation
        self.seq = 0
        self._kept: deque[PoolMessage] = deque(maxlen=kept_max)

    def write(self, body: PoolEvent) -> PoolMessage:
        """The next entry of the log, to be published; `body` is a change, neither a heartbeat nor a snapshot."""
        assert not isinstance(body, (Heartbeat, Snapshot))  # a union would be built at each call
        self.seq += 1
        message = self._message(self.seq, body)
        self._kept.append(message)
        return message

    def heartbeat(self) -> PoolMessage:
        """Says how far the log has come; changes nothing. Without it a lost last entry is never noticed."""
        return self._message(self.seq, Heartbeat(head_seq=self.seq))

    def answer(self, incarnation: int, after_seq: int, rows: Callable[[], Rows]) -> tuple[PoolMessage, ...]:
        """Messages that bring up to date a reader that has `after_seq` entries of `incarnation`.

        The missing entries if all are kept, else a snapshot of `rows()`. A reader that has fenced this incarnation
        (it believed the worker dead) names a later one: the worker moves there, keeping what it holds.
        """
        if incarnation > self.incarnation:
            self.incarnation, self.seq = incarnation, 0
            self._kept.clear()
            self.seq = 1  # the snapshot stands for the first entry, so that it is newer than nothing
        elif incarnation == self.incarnation and after_seq <= self.seq:
            oldest = self._kept[0].seq if self._kept else self.seq + 1
            if after_seq + 1 >= oldest:
                return tuple(m for m in self._kept if m.seq > after_seq)
        return (self._message(self.seq, Snapshot(as_of_seq=self.seq, rows=rows())),)

    def _message(self, seq: int, body: PoolEvent) -> PoolMessage:
        return PoolMessage(node=self.node, incarnation=self.incarnation, seq=seq, body=body)
