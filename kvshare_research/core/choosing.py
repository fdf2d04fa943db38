"""The router's selector with what it has learned: a function of the answers so far, so that a replay chooses alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from .nouns import Outcome, QuoteTable, Status
from .ports import Selector, UnderWay


@final
class Choosing:
    """A selector and its state."""

    def __init__(self, policy: Selector) -> None:
        self.policy = policy
        self.state: Any = policy.initial_state()
        self._now = policy.now(self.state)

    @property
    def least_at_permille(self) -> int | None:
        """The weight at which the row of least price is all that is looked at now; None: it may be any row."""
        return self._now.least_at_permille

    def row(self, table: QuoteTable) -> int:
        """The row to follow."""
        return self._now.select(table)

    def refusal(self, table: QuoteTable, row: int, under_way: Iterable[UnderWay], now_us: int) -> str:
        """Why the request is turned away; empty: it is let in. `under_way` is read only by who may refuse."""
        if not self.policy.may_refuse:
            return ""
        return self._now.refuses(table, row, tuple(under_way), now_us)

    def answered(self, ttft_us: int) -> None:
        """A first token has come."""
        if self.policy.learns:
            self._become(self.policy.answered(self.state, ttft_us))

    def ended(self, served: Outcome) -> None:
        """A request has come back from its node."""
        if self.policy.learns and served.status == Status.DONE:
            self._become(self.policy.ended(self.state, served.decode_us))

    def _become(self, state: Any) -> None:
        if state is not self.state:
            self.state, self._now = state, self.policy.now(state)
