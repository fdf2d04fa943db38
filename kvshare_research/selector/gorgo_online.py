"""GORGO v3 as it ran: its weights climb while it serves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import Literal, final

import numpy as np

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .gorgo import Gorgo
from .one_plus_one import Climb, Floats, accepts_published, accepts_repaired

US_PER_S = 1e6
ACCEPTS = {"published": accepts_published, "repaired": accepts_repaired}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Climbing:
    """What it has learned: the climb, the weights on trial, the last TTFTs, and answers until the next step."""

    climb: Climb | None  # None: nothing was scored yet
    trial: tuple[float, ...]  # logarithms
    ttft_us: tuple[int, ...]
    wait: int
    step: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GorgoOnline(Selector):
    """`Gorgo` with weights that a (1+1)-ES moves during the run; changes nothing itself, its state is its router's.

    GORGO v3 (arXiv 2602.11688): the score is minus the p95 TTFT of the last `window_requests` first tokens, taken when
    as many have come and every `hop_requests` from then on (18 steps in 672 answers, as published); the weights on
    trial decide meanwhile, so most of a window was decided by those before them, as there. `accept: published` takes
    score > best * (1 + .005), which takes worse ones too since scores are negative; `repaired` asks for an improvement.
    Start and box as published. The noise of a step depends on `seed` and the step alone.
    """

    rtt_weight: float = 0.5
    queue_weight: float = 0.1
    rtt_low: float = 0.05
    rtt_high: float = 2.0
    queue_low: float = 0.05
    queue_high: float = 0.5
    window_requests: int = 128
    hop_requests: int = 32
    accept: Literal["published", "repaired"] = "published"
    seed: int = 0

    def __post_init__(self) -> None:
        box = (
            ("rtt", self.rtt_low, self.rtt_weight, self.rtt_high),
            ("queue", self.queue_low, self.queue_weight, self.queue_high),
        )
        for name, low, start, high in box:
            if not 0 < low <= start <= high:
                raise ConfigError(
                    f"`{name}_weight` is {start}, expected within `{name}_low` {low} and `{name}_high` {high}, above 0"
                )
        if self.window_requests < 1 or self.hop_requests < 1 or self.seed < 0:
            raise ConfigError("`window_requests` and `hop_requests` are at least 1, `seed` at least 0")

    @property
    def learns(self) -> bool:
        """Its weights move."""
        return True

    def select(self, table: QuoteTable) -> int:
        """The row that the start weights choose."""
        return Gorgo(rtt_weight=self.rtt_weight, queue_weight=self.queue_weight).select(table)

    def initial_state(self) -> Climbing:
        """The start weights on trial."""
        at = (log(self.rtt_weight), log(self.queue_weight))
        return Climbing(climb=None, trial=at, ttft_us=(), wait=self.window_requests)

    def now(self, state: Climbing) -> Selector:
        """`Gorgo` with the weights on trial."""
        rtt_weight, queue_weight = np.exp(state.trial).tolist()
        return Gorgo(rtt_weight=rtt_weight, queue_weight=queue_weight)

    def answered(self, state: Climbing, ttft_us: int) -> Climbing:
        """One TTFT more; at the end of a hop the trial is scored and another begins."""
        seen = replace(state, ttft_us=(*state.ttft_us, ttft_us)[-self.window_requests :], wait=state.wait - 1)
        if seen.wait > 0:
            return seen
        score = -float(np.percentile(seen.ttft_us, 95)) / US_PER_S
        trial = np.array(seen.trial)
        if seen.climb is None:
            climb = Climb(at=seen.trial, best=score)
        else:
            climb = seen.climb.settled(trial, score, ACCEPTS[self.accept])
        noise = np.random.default_rng((self.seed, seen.step)).standard_normal(2)
        low, high = self._box()
        tried = climb.tried(noise, low, high)
        return replace(
            seen, climb=climb, trial=tuple(tried.tolist()), wait=self.hop_requests, step=seen.step + 1
        )  # fmt: skip

    def _box(self) -> tuple[Floats, Floats]:
        return np.log([self.rtt_low, self.queue_low]), np.log([self.rtt_high, self.queue_high])
