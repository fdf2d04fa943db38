"""Whether a run came to a steady state: how much of its beginning is warm-up, and whether its queue kept growing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from kvshare_research.core.nouns import Outcome, Status

from .resampling import Floats
from .statistics import Saturation, floats, saturation

MSER_BATCH = 5
MSER_SAMPLES = 100  # fewer values say nothing about a warm-up
ROUNDING = 1e-12  # of the whole sum of squares: what is left of equal values after a subtraction
IDLE_SHARE = 0.9  # of the one before: on ranks the time of hashing a prompt is counted in, before it arrives
INTERVAL_BATCHES, INTERVAL_OUTSIDE = 20, 0.01


def mser5(values: ArrayLike) -> int | None:
    """How many first values are warm-up by MSER-5; None where no steady state was reached. 0 for fewer than 100 values.

    White, Cobb and Spratt (2000), "A comparison of five steady-state truncation heuristics for simulation": of the n
    means of five values each, the d first are cut that make sum((z - mean)^2) / (n - d)^2 of the others least. A
    least value past the half of the run says that it never became steady, and of the last five batches none is
    asked: few values are alike by chance (Hoad, Robinson and Davies 2010, "Automating warm-up length estimation").
    """
    x = floats(values)
    count = len(x) // MSER_BATCH
    if len(x) < MSER_SAMPLES:
        return 0
    z = x[: count * MSER_BATCH].reshape(count, MSER_BATCH).mean(axis=1)
    z -= z.mean()
    left = count - np.arange(count - MSER_BATCH)
    sums, squares = (np.cumsum(v[::-1])[::-1][: len(left)] for v in (z, z * z))
    spread = np.maximum(squares - sums * sums / left, ROUNDING * squares[0])
    cut = int(np.argmin(spread / (left * left)))
    return cut * MSER_BATCH if cut <= count // 2 else None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """Of one case. `left_out` requests were declared warm-up; `warmup` is what MSER-5 of TTFT finds (None: no end).

    `matters`: leaving out what was found, or the first half if there is no end, would move the mean TTFT by more than
    the 99 % interval of what remains. MSER-5 alone finds a warm-up in every fifth short run of a steady queue.
    """

    left_out: int
    warmup: int | None
    matters: bool
    queue: Saturation

    @property
    def trouble(self) -> str:
        """Why percentiles of this case mean little; empty where they do mean something."""
        if self.queue.saturated:
            return "saturated"
        if self.matters:
            return "never steady" if self.warmup is None else f"warm-up of {self.warmup}"
        return ""


def _matters(values: Floats, left_out: int, warmup: int | None) -> bool:
    """Whether cutting what MSER-5 found moves the mean beyond its interval, by the means of 20 batches of the rest."""
    from scipy import stats

    cut = len(values) // 2 if warmup is None else warmup
    if cut <= left_out:
        return False
    rest = values[cut:]
    means = np.array([batch.mean() for batch in np.array_split(rest, min(INTERVAL_BATCHES, len(rest) // MSER_BATCH))])
    half = stats.t.ppf(1 - INTERVAL_OUTSIDE / 2, len(means) - 1) * means.std(ddof=1) / len(means) ** 0.5
    return bool(abs(values[left_out:].mean() - rest.mean()) > half)


def steadiness(outcomes: Sequence[Outcome], left_out: int | None = None) -> Steadiness | None:
    """Of all requests of a case; None where each arrived after the one before had ended (idle), or none was served.

    `left_out`: so many first ones do not count; None: those marked as warm-up.
    """
    rows = sorted((o for o in outcomes if o.status == Status.DONE), key=lambda o: (o.arrival_us, o.request_id))
    if left_out is None:
        left_out = sum(o.warmup for o in rows)
    times = [max(o.end_to_end_us, o.ttft_us) for o in rows]
    if all(b.arrival_us - a.arrival_us >= IDLE_SHARE * time for a, b, time in zip(rows, rows[1:], times, strict=False)):
        return None
    ends = [o.arrival_us + time for o, time in zip(rows, times, strict=True)]
    kept = rows[left_out:]
    # Without decoding: in a batch that prefills all the time an answer takes as long as the queue is.
    service_us = float(np.median([o.ttft_us - o.held_us - o.queue_us for o in kept])) if kept else 0.0
    queue = saturation([o.arrival_us for o in kept], [o.queue_us for o in kept], ends[left_out:], service_us)
    ttft = floats([o.ttft_us for o in rows])
    warmup = mser5(ttft)
    return Steadiness(left_out=left_out, warmup=warmup, matters=_matters(ttft, left_out, warmup), queue=queue)
