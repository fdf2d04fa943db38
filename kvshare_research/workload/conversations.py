"""Conversations drawn by a seed, of any length and rate, without a file: for fleets larger than any public trace."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from kvshare_research.core.errors import ConfigError

from .trace import Reading, TraceRow
from .trace_requests import TraceWorkload

DRAWN_AT_ONCE = 4096
_SESSION_SHIFT = 20  # ids of a session's blocks begin here; those of system prompts lie below


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationTrace(TraceWorkload):
    """Sessions begin at random times (Poisson), so that in the long run `rate_per_s` requests come in a second.

    A session has one of `system_count` public system prompts of `system_blocks` blocks, drawn with Zipf weights, and
    `turns_mean` turns (geometric). A turn sends all before it and 1 or more new blocks (geometric, `turn_blocks_mean`;
    they stand for the last answer too), `think_s_mean` after the one before (exponential); its answer has
    `output_tokens_mean` tokens (exponential, rounded up). All is assumed; the same seed gives the same rows.
    """

    rate_per_s: float
    system_count: int
    system_zipf_exponent: float
    system_blocks: int
    turns_mean: float
    turn_blocks_mean: float
    think_s_mean: float
    output_tokens_mean: float
    unit_tokens: int
    seed: int

    def __post_init__(self) -> None:
        TraceWorkload.__post_init__(self)
        if self.request_count is None:
            raise ConfigError("`request_count` is null, expected a number: these conversations have no end")
        for name in ("rate_per_s", "think_s_mean", "output_tokens_mean"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"`{name}` is `{getattr(self, name)}`, expected a number above 0")
        for name in ("turns_mean", "turn_blocks_mean", "system_count", "system_blocks", "unit_tokens"):
            if not 1 <= getattr(self, name) < 1 << _SESSION_SHIFT:
                raise ConfigError(f"`{name}` is `{getattr(self, name)}`, expected at least 1")
        if self.system_count * self.system_blocks >= 1 << _SESSION_SHIFT:
            raise ConfigError(f"`system_count` times `system_blocks` must stay below {1 << _SESSION_SHIFT}")

    @property
    def block_tokens(self) -> int:
        return self.unit_tokens

    def public_tokens(self, row: TraceRow) -> int:
        """The system prompt."""
        return self.system_blocks * self.unit_tokens

    def rows(self, reading: Reading) -> Iterator[TraceRow]:
        """Turns of all sessions by time; only sessions that are under way are held."""
        dice = _Dice(np.random.Generator(np.random.PCG64(self.seed)))
        weights = np.arange(1, self.system_count + 1, dtype=np.float64) ** -self.system_zipf_exponent
        shares = np.cumsum(weights / weights.sum())
        gap_s = self.turns_mean / self.rate_per_s
        under_way: list[tuple[float, int, int, int]] = []  # (time of the next turn, session, system prompt, blocks)
        begins_s, session = dice.wait(gap_s), 0
        while True:
            if under_way and under_way[0][0] < begins_s:
                at_s, number, system, blocks = heapq.heappop(under_way)
            else:
                at_s, number, blocks = begins_s, session, self.system_blocks
                system = min(int(np.searchsorted(shares, dice.unit())), self.system_count - 1)
                begins_s, session = begins_s + dice.wait(gap_s), session + 1
            blocks += dice.at_least_one(self.turn_blocks_mean)
            reading.rows += 1
            yield self._row(at_s, number, system, blocks, dice)
            if dice.unit() >= 1 / self.turns_mean:
                heapq.heappush(under_way, (at_s + dice.wait(self.think_s_mean), number, system, blocks))

    def _row(self, at_s: float, session: int, system: int, blocks: int, dice: _Dice) -> TraceRow:
        ids = np.arange(blocks, dtype=np.int64)
        ids[: self.system_blocks] += system * self.system_blocks
        ids[self.system_blocks :] += (session + 1) << _SESSION_SHIFT
        return TraceRow(
            arrival_us=int(at_s * 1e6),
            input_tokens=blocks * self.unit_tokens,
            output_tokens=1 + int(dice.wait(self.output_tokens_mean)),
            ids=ids,
            unit_tokens=self.unit_tokens,
            space="conversations",
            session=str(session),
        )


class _Dice:
    """Numbers in (0, 1], drawn many at once: one by one they would cost more than a decision."""

    def __init__(self, chance: np.random.Generator) -> None:
        self._chance = chance
        self._drawn: list[Any] = []

    def unit(self) -> float:
        if not self._drawn:
            self._drawn = (1.0 - self._chance.random(DRAWN_AT_ONCE)).tolist()
        return float(self._drawn.pop())

    def wait(self, mean: float) -> float:
        """Exponential."""
        return -mean * math.log(self.unit())

    def at_least_one(self, mean: float) -> int:
        """Geometric, from 1."""
        if mean == 1:
            return 1
        return 1 + int(math.log(self.unit()) / math.log(1 - 1 / mean))
