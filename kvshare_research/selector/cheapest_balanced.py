"""`cheapest` with a price on holding up others that follows from the answers so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import PERMILLE, QuoteTable
from kvshare_research.core.ports import Selector

from .cheapest import Cheapest


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Sums over the answers so far, of which each further one makes the former count `1 / window` less."""

    ttft_us: int = 0
    decode_us: int = 0

    @property
    def weigh_delay_permille(self) -> int:
        """T / (T + E), in thousandths; 0 before the first answer."""
        whole = 2 * self.ttft_us + self.decode_us
        return PERMILLE * self.ttft_us // whole if whole else 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CheapestBalanced(Selector):
    """`Cheapest` with the weight T / (T + E), T the mean TTFT and E the mean end-to-end time of late; changes nothing.

    What is lessened is the sum of both means, each as a share of what it is now: a first token that comes d later adds
    d / T + d / E, an answer held up by d adds d / E, so in units of the first the second counts T / (T + E). Where
    answers are long beside first tokens, a delay of theirs counts for little; at most for a half. Both means forget:
    one answer in `window_requests` of what they are made of. What it learns is a state of its router.
    """

    window_requests: int = 256

    def __post_init__(self) -> None:
        if self.window_requests < 1:
            raise ConfigError(f"`window_requests` is `{self.window_requests}`, expected 1 or more")

    @property
    def learns(self) -> bool:
        """Its weight moves."""
        return True

    def select(self, table: QuoteTable) -> int:
        """The row of least TTFT, as before any answer."""
        return self.now(self.initial_state()).select(table)

    def initial_state(self) -> Times:
        """No answer yet."""
        return Times()

    def now(self, state: Times) -> Selector:
        """`Cheapest` at this weight."""
        return Cheapest(weigh_delay_permille=state.weigh_delay_permille)

    def answered(self, state: Times, ttft_us: int) -> Times:
        """One first token more."""
        return Times(ttft_us=self._with(state.ttft_us, ttft_us), decode_us=state.decode_us)

    def ended(self, state: Times, decode_us: int) -> Times:
        """One answer more."""
        return Times(ttft_us=state.ttft_us, decode_us=self._with(state.decode_us, decode_us))

    def _with(self, total_us: int, value_us: int) -> int:
        return total_us - total_us // self.window_requests + value_us
