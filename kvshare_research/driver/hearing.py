"""When each node was last heard of. A node that is silent for too long while it serves is taken for dead."""

from __future__ import annotations

from typing import final

SILENCE_US = 30_000_000  # a worker says something every tenth of a second; a kernel or a busy machine holds it up


@final
class Hearing:
    """Reads no clock. `lost` only grows: a node that was given up is not listened to again."""

    def __init__(self, node_count: int, silence_us: int = SILENCE_US) -> None:
        self.silence_us = silence_us
        self.lost: set[int] = set()
        self._heard_us = [0] * node_count

    @property
    def live(self) -> list[int]:
        """The nodes not given up, in order."""
        return [node for node in range(len(self._heard_us)) if node not in self.lost]

    def begin(self, now_us: int) -> None:
        """Silence counts from now."""
        self._heard_us = [now_us] * len(self._heard_us)

    def heard(self, node: int, now_us: int) -> bool:
        """Something came from the node; False where it was given up before."""
        self._heard_us[node] = now_us
        return node not in self.lost

    def overdue(self, now_us: int) -> list[int]:
        """The nodes silent for too long, given up from now on; each is told once."""
        late = [node for node in self.live if now_us - self._heard_us[node] > self.silence_us]
        self.lost.update(late)
        return late
