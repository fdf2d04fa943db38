"""Disclosure before a router: at each arrival the desk votes and releases, and chains follow what is promoted.

The text of what was voted for is remembered, in this process's memory only, because a released prefix is computed once
by the operator on each node before anybody's chain names it. It is the one place where prompts are more than keyed
names: at most `TEXT_TOKENS_MAX` tokens, and at the first request after a period has closed all of it is forgotten but
for released prefixes and those that the mechanism may still release.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core import messages as m
from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import Chain, Request
from kvshare_research.core.ports import Noise
from kvshare_research.disclosure.never import NeverDisclosure
from kvshare_research.disclosure.noise import SeededNoise, SystemNoise
from kvshare_research.guard.disclosing import Offer
from kvshare_research.privacy.settings import BudgetSettings

from .assembly import component
from .prompts import Hasher

if TYPE_CHECKING:
    from kvshare_research.core.router import Router
    from kvshare_research.driver.cluster import Cluster
    from kvshare_research.driver.simulator import Simulator
    from kvshare_research.privacy.desk import Desk

TEXT_TOKENS_MAX: Final = 1 << 24


class Texts:
    """The tokens of prefixes by name, the longest known to each name; the longest unused are forgotten first."""

    def __init__(self, tokens_max: int = TEXT_TOKENS_MAX) -> None:
        self._tokens_max = tokens_max
        self._token_count = 0
        self._texts: OrderedDict[bytes, NDArray[np.uint32]] = OrderedDict()  # by the deepest name
        self._deepest: dict[bytes, tuple[bytes, int]] = {}  # (deepest name, tokens) of each name

    def note(self, offer: Offer, tokens: NDArray[np.uint32]) -> None:
        """The names of the offer are known, by the first of these tokens."""
        deepest, size = offer.names[-1], offer.chain.block_tokens
        known = len(self._texts.get(deepest, ()))
        if known == offer.blocks[-1] * size:
            self._texts.move_to_end(deepest)
            return
        self._texts[deepest] = tokens[: offer.blocks[-1] * size].copy()
        self._token_count += offer.blocks[-1] * size - known
        for name, blocks in zip(offer.names, offer.blocks, strict=True):
            self._deepest[name] = (deepest, blocks * size)
        while self._token_count > self._tokens_max and len(self._texts) > 1:
            gone, text = self._texts.popitem(last=False)
            self._token_count -= len(text)
            self._deepest = {n: row for n, row in self._deepest.items() if row[0] != gone}

    def keep(self, names: AbstractSet[bytes]) -> None:
        """Only these prefixes are known from now on, and of each text no more than the longest of them."""
        self._deepest = {name: row for name, row in self._deepest.items() if name in names}
        needed: dict[bytes, int] = {}
        for deepest, tokens in self._deepest.values():
            needed[deepest] = max(tokens, needed.get(deepest, 0))
        self._texts = OrderedDict((n, text[: needed[n]].copy()) for n, text in self._texts.items() if n in needed)
        self._token_count = sum(needed.values())

    def get(self, name: bytes) -> NDArray[np.uint32] | None:
        """The tokens of a prefix; None if it was forgotten."""
        row = self._deepest.get(name)
        return None if row is None else self._texts[row[0]][: row[1]]


class Discloser:
    """The desk of one case, in front of `router()`. `tell` hands an event to that router."""

    def __init__(
        self, hasher: Hasher, desk: Desk, tell: Callable[[m.RouterEvent], None], router: Callable[[], Router]
    ) -> None:
        self.desk = desk
        self.texts = Texts()
        self._hasher = hasher
        self._tell = tell
        self._router = router

    def arrive(self, request: Request, tokens: NDArray[np.uint32], now_us: int) -> tuple[Request, Chain]:
        """The request with the scopes and chain it has now. Releases due by now come first, its own vote after."""
        self.advance(now_us)
        promoted = self._router().promoted
        made, chain, offered = self._hasher.chained(request, tokens, promoted)
        if offered is not None:
            self.texts.note(offered, tokens)
            if offered.released_blocks(promoted):
                made, chain = self._deeper(made, chain, request, tokens)
        self.desk.vote(offered, made)
        if self.desk.policy.period_us == 0:
            self.advance(now_us)
        return made, chain

    def _deeper(
        self, made: Request, chain: Chain, request: Request, tokens: NDArray[np.uint32]
    ) -> tuple[Request, Chain]:
        """The wider chain, unless more is held of the request under its own: what a tenant has cached behind a prefix
        is not lost when that is promoted. Only the tenant's own blocks have names of its own chain."""
        own, narrow, _ = self._hasher.chained(request, tokens)
        return (own, narrow) if self._held(narrow) > self._held(chain) else (made, chain)

    def _held(self, chain: Chain) -> int:
        return max((run.block_count for run in self._router().replica.match(chain).runs), default=0)

    def notes(self) -> dict[str, Any]:
        """What was spent, released and shared, for the record of the run."""
        counts = {"released_prefixes": len(self.desk.released), "shared_prefixes": len(self._router().promoted)}
        return {**counts, "spent": self.desk.spent(), **self.desk.counters}

    def advance(self, now_us: int) -> None:
        """The router knows of every release due by now, and of what was voted for only what may be needed is left."""
        closed = self.desk.closed_periods
        if self.desk.advance(now_us):
            self._tell(m.PrefixesReleased(prefixes=self.desk.prefixes()))
        if self.desk.closed_periods != closed:
            self.texts.keep(self.desk.released | self.desk.awaited())


def desk_of(config: Mapping[str, Any], directory: Directory, noise: Noise) -> Desk | None:
    """The desk of this case, or None where nothing is ever disclosed."""
    policy = component(config, "disclosure")
    if isinstance(policy, NeverDisclosure):
        return None
    settings: BudgetSettings = component(config, "budget")
    return settings.desk(policy, directory, noise)


def on_cluster(config: Mapping[str, Any], cluster: Cluster, hasher: Hasher) -> Discloser | None:
    """What stands in front of a cluster's router in this case. Noise comes from the system's entropy.
    Without a desk prompts are hashed once more at their arrival if a membership may have run out by then."""
    desk = desk_of(config, hasher.directory, SystemNoise())
    if desk is None:
        if hasher.directory.expires():
            cluster.prepare = lambda request, tokens, _: hasher.chained(request, tokens)[:2]
        return None
    return before_cluster(cluster, hasher, desk)


def before_cluster(cluster: Cluster, hasher: Hasher, desk: Desk) -> Discloser:
    """This desk stands in front of the router of the cluster's case."""
    assert cluster.router is not None
    router = cluster.router
    made = Discloser(hasher, desk, cluster.feed, lambda: router)
    cluster.prepare, cluster.text_of = made.arrive, made.texts.get
    return made


def in_simulator(config: Mapping[str, Any], simulator: Simulator, hasher: Hasher, seed: int) -> Discloser | None:
    """The same before a simulated router, with noise from the seed: whoever knows it knows the noise."""
    desk = desk_of(config, hasher.directory, SeededNoise(seed))
    return None if desk is None else before_simulator(simulator, hasher, desk)


def before_simulator(simulator: Simulator, hasher: Hasher, desk: Desk) -> Discloser:
    """This desk stands in front of a simulated router."""

    def tell(event: m.RouterEvent) -> None:
        simulator.at(simulator.now_us, event)

    return Discloser(hasher, desk, tell, lambda: simulator.router)
