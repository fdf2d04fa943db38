"""Quotas that change, and tenants that go, while requests run: at once where that fits, else as soon as it does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from .ledger import Block, Ledger
from .nouns import AccountSpec


@final
class Requota:
    """The quotas that were asked for and are not in force yet. Until then the old ones are.

    What is pinned is never taken away: an account above its new limit shrinks to what its running requests hold, and
    the limit is in force when they end. Floors that do not fit beside what stronger classes hold wait for it to go.
    What a removed tenant has pinned goes with its last pin.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: dict[int, AccountSpec] = {}
        self._closed: frozenset[int] = frozenset()

    @property
    def is_waiting(self) -> bool:
        """Whether some quota is not in force yet, or a closed scope holds what may go."""
        if not self._waiting and not self._closed:
            return False
        return bool(self._waiting) or any(a.used > a.pinned for a in map(self._ledger.account, self._closed))

    def ask(self, specs: Iterable[AccountSpec], closed: frozenset[int]) -> tuple[Block, ...]:
        """These are the quotas from now on, or as soon as they fit, and closed scopes hold nothing; what had to go."""
        self._closed = closed
        self._waiting = {spec.scope_id: spec for spec in specs if self._ledger.specs.get(spec.scope_id) != spec}
        return self.settle()

    def settle(self) -> tuple[Block, ...]:
        """All that fits is in force, in any order: one that is lowered may make room for one that is raised."""
        evicted = list(self._ledger.purge(self._closed)) if self._closed else []
        while True:
            before = len(self._waiting)
            for spec in tuple(self._waiting.values()):
                evicted.extend(self._ledger.purge(frozenset({spec.scope_id}), spec.limit_blocks))
                if self._ledger.configure(spec):
                    del self._waiting[spec.scope_id]
            if len(self._waiting) == before:
                return tuple(evicted)
