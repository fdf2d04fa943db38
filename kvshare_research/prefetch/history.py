"""What predictors remember of the past: who asked for which prefix, where, and the chain it had. Bounded in memory."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from kvshare_research.core.nouns import Chain
from kvshare_research.core.ports import PrefetchIntent, Seen

KEPT_MAX = 1 << 14  # actors, and prefixes of a tenant, remembered at once
CONTEXT_MAX = 3  # last prefixes of an actor that a predictor may look at
PLACES_MAX = 8  # last ingress nodes of an actor that its next one is predicted from

_K = TypeVar("_K")
_V = TypeVar("_V")
Actor = tuple[int, int]  # (tenant, user)


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """A prefix as a tenant last asked for it."""

    chain: Chain
    block_count: int


@dataclass(slots=True)
class Trail:
    """The last prefixes and places of one actor."""

    names: deque[bytes] = field(default_factory=lambda: deque(maxlen=CONTEXT_MAX))
    places: deque[int] = field(default_factory=lambda: deque(maxlen=PLACES_MAX))

    @property
    def place(self) -> int:
        """The most frequent of the last places, the latest among equals."""
        counts = Counter(self.places)
        return max(reversed(self.places), key=lambda p: counts[p])


@dataclass(slots=True)
class History:
    """Trails by actor and fronts by (tenant, prefix name); the least recently used are forgotten first."""

    trails: OrderedDict[Actor, Trail] = field(default_factory=OrderedDict)
    fronts: OrderedDict[tuple[int, bytes], Front] = field(default_factory=OrderedDict)
    anybody: OrderedDict[bytes, Front] = field(default_factory=OrderedDict)
    fresh: list[Seen] = field(default_factory=list)  # seen since the last proposal

    def note(self, seen: Seen) -> bytes | None:
        """The request is part of the past; the name of its prefix, None if it has none."""
        if not seen.prefix_blocks:
            return None
        name = seen.chain.block_hash(seen.prefix_blocks - 1)
        front = Front(chain=seen.chain, block_count=seen.prefix_blocks)
        _keep(self.fronts, (seen.tenant_id, name), front)
        _keep(self.anybody, name, front)
        trail = self.trails.pop((seen.tenant_id, seen.user_id), None) or Trail()
        trail.names.append(name)
        trail.places.append(seen.ingress)
        _keep(self.trails, (seen.tenant_id, seen.user_id), trail)
        self.fresh.append(seen)
        return name

    def front(self, tenant_id: int, name: bytes) -> Front | None:
        """The prefix as this tenant asked for it, else as anybody did: the router judges whether it may read that."""
        return self.fronts.get((tenant_id, name)) or self.anybody.get(name)

    def take_fresh(self) -> list[Seen]:
        """What was seen since the last call."""
        fresh, self.fresh = self.fresh, []
        return fresh


def _keep(table: OrderedDict[_K, _V], key: _K, value: _V) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > KEPT_MAX:
        table.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicting:
    """What all predictors are configured by. Times in us."""

    price_ps_per_byte: int
    inflight_bytes_max: int
    horizon_us: int  # how long a prediction is good for
    proposals_max: int  # prefixes proposed after each request
    probability_min: float

    def intents(self, history: History, seen: Seen, ranked: Iterable[tuple[bytes, float]]) -> list[PrefetchIntent]:
        """The likeliest prefixes, at the place where this actor will probably ask next; what the request just asked for
        there is on its way already."""
        place = history.trails[seen.tenant_id, seen.user_id].place
        here = seen.chain.block_hash(seen.prefix_blocks - 1) if place == seen.executor else None
        out: list[PrefetchIntent] = []
        for name, probability in ranked:
            front = history.front(seen.tenant_id, name)
            if len(out) == self.proposals_max or probability < self.probability_min:
                break
            if front is not None and name != here:
                out.append(
                    PrefetchIntent(
                        tenant_id=seen.tenant_id,
                        user_id=seen.user_id,
                        chain=front.chain,
                        block_count=front.block_count,
                        node=place,
                        deadline_us=seen.now_us + self.horizon_us,
                        probability=probability,
                    )
                )
        return out
