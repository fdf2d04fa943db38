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
    """How long an event loop may sleep: not at all while something moves, then longer the longer nothing happened.

    A poll takes about a microsecond, so resting 0.1, 0.25 and 1 ms costs about 6, 4 and 1.6 % of a core. Short rests
    end soon, since the core is one that somebody computes on: a router and two workers on two cores poll for a tenth of
    a core in all, as the kernel counts it; for a fifth if short rests last 0.1 s.
    """

    STEPS_S = ((1e-3, 1e-4), (4e-3, 2.5e-4))  # (up to so long after the last activity, rest so long)
    LONGEST_S = 1e-3
    IN_MOTION_S = 2e-5  # MPI moves large messages only inside its calls: yield, but hurry back

    def __init__(self) -> None:
        self._quiet_s = 0.0

    def seconds(self, moved: bool, in_motion: bool, due_in_us: int | None) -> float:
        """Seconds to sleep after a round in which something `moved`, if the next timer is due in `due_in_us`."""
        if moved:
            self._quiet_s = 0.0
            return 0.0
        if in_motion:
            return self.IN_MOTION_S
        rest_s = next((rest for until, rest in self.STEPS_S if self._quiet_s < until), self.LONGEST_S)
        if due_in_us is not None:
            rest_s = max(0.0, min(rest_s, due_in_us * 1e-6))
        self._quiet_s += rest_s
        return rest_s
