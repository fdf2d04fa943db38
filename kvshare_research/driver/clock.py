"""The one place of this package that reads a clock for decisions. Each rank has its own; messages carry durations."""

from __future__ import annotations

import time


class Clock:
    """Monotonic microseconds since `restart`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Now is zero."""
        self._origin_ns = time.monotonic_ns()

    def now_us(self) -> int:
        return (time.monotonic_ns() - self._origin_ns) // 1000


class Rest:
    """How long an event loop may sleep: not at all while something moves, then longer and longer up to a bound."""

    FIRST_S = 1e-4
    LONGEST_S = 1e-3

    def __init__(self) -> None:
        self._next_s = self.FIRST_S

    def seconds(self, moved: bool, in_motion: bool, due_in_us: int | None) -> float:
        """Seconds to sleep after a round in which something `moved`, if the next timer is due in `due_in_us`."""
        if moved:
            self._next_s = self.FIRST_S
            return 0.0
        if in_motion:  # MPI moves large messages only inside its calls; yield, but hurry back
            return 2e-5
        seconds = self._next_s
        self._next_s = min(self.LONGEST_S, self._next_s * 1.5)
        return seconds if due_in_us is None else max(0.0, min(seconds, due_in_us * 1e-6))
