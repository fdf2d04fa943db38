"""Link measurements at the reading node: ask, wait for the answer, ask again."""

from __future__ import annotations

from collections.abc import Callable

from kvshare_research.transport import wire


class Prober:
    """One series of probes at a time, strictly one after the other, so that they do not share the link."""

    Step = tuple[int, wire.ProbeAsked] | wire.Measured | None  # ask this node, or the series is over, or nothing

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._series: wire.MeasureLink | None = None
        self._asked_us = 0
        self._probe = 0
        self._arrived_bytes = 0
        self._rows: list[tuple[int, ...]] = []

    def start(self, series: wire.MeasureLink) -> Step:
        """The first question of a new series; one that was under way is given up."""
        self._series, self._rows = series, []
        return self._ask(series)

    def answered(self, probe: int, payload_bytes: int) -> Step:
        """After the last byte the next question, or all timings (us, one row per repeat); else None."""
        if self._series is None or probe != self._probe:
            return None
        self._arrived_bytes += payload_bytes
        if self._arrived_bytes < self._series.payload_bytes:
            return None
        self._rows.append((self._now_us() - self._asked_us,))
        if len(self._rows) < self._series.repeats:
            return self._ask(self._series)
        self._series = None
        return wire.Measured(0, tuple(self._rows))

    def _ask(self, series: wire.MeasureLink) -> Step:
        self._probe += 1
        self._arrived_bytes = 0
        self._asked_us = self._now_us()
        return series.source, wire.ProbeAsked(self._probe, series.payload_bytes)
