"""The next prefix from the last ones: counts of contexts up to two long, blended by backoff (as in PPM).

With `scope: tenant` each tenant has tables of its own. With `scope: everybody` one table serves all, which makes a
prefetch hit a word about others' requests: a channel, measured beside the private predictors, not offered as safe.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any, Literal, final

from kvshare_research.core.ports import Prefetch, PrefetchIntent, Seen

from .history import KEPT_MAX, History, Predicting

ORDERS = (1, 2)


@dataclass(slots=True)
class _State:
    history: History = field(default_factory=History)
    counts: OrderedDict[tuple[int, tuple[bytes, ...]], Counter[bytes]] = field(default_factory=OrderedDict)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ppm(Predicting, Prefetch):
    """Order 2 with backoff to order 1 and to popularity."""

    scope: Literal["tenant", "everybody"]

    def initial_state(self) -> Any:
        return _State()

    def observe(self, state: Any, seen: Seen) -> Any:
        trail = state.history.trails.get((seen.tenant_id, seen.user_id))
        before = tuple(trail.names) if trail else ()
        name = state.history.note(seen)
        if name is not None:
            for order in (0, *ORDERS):
                if order <= len(before):
                    self._count(state, (self._owner(seen), before[len(before) - order :]))[name] += 1
        return state

    def propose(self, state: Any, now_us: int) -> tuple[Any, tuple[PrefetchIntent, ...]]:
        out: list[PrefetchIntent] = []
        for seen in state.history.take_fresh():
            names = tuple(state.history.trails[seen.tenant_id, seen.user_id].names)
            out += self.intents(state.history, seen, self.ranked(state, self._owner(seen), names))
        return state, tuple(out)

    def ranked(self, state: Any, owner: int, names: tuple[bytes, ...]) -> list[tuple[bytes, float]]:
        """(name, probability), likeliest first: each order weighs total / (total + escape) against the ones below."""
        blended: dict[bytes, float] = {}
        for order in (0, *ORDERS):
            row = state.counts.get((owner, names[len(names) - order :])) if order <= len(names) else None
            if row:
                total = sum(row.values())
                weight = total / (total + (2 if order == 1 else 1)) if order else 1.0
                blended = {n: (1 - weight) * p for n, p in blended.items()}
                for name, count in row.items():
                    blended[name] = blended.get(name, 0.0) + weight * count / total
        return sorted(blended.items(), key=lambda item: (-item[1], item[0]))

    def _owner(self, seen: Seen) -> int:
        return seen.tenant_id if self.scope == "tenant" else 0

    def _count(self, state: _State, key: tuple[int, tuple[bytes, ...]]) -> Counter[bytes]:
        row = state.counts.setdefault(key, Counter())
        state.counts.move_to_end(key)
        while len(state.counts) > KEPT_MAX:
            state.counts.popitem(last=False)
        return row
