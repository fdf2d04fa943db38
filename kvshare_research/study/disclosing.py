"""Disclosure on a live cluster: at each arrival the desk votes and releases, and chains follow what is promoted.

The text of what was voted for is remembered, in this process's memory only and bounded, because a released prefix is
computed once by the operator on each node before anybody's chain names it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core import messages as m
from kvshare_research.core.nouns import Chain, Request
from kvshare_research.disclosure.never import NeverDisclosure
from kvshare_research.disclosure.noise import SystemNoise
from kvshare_research.guard.disclosing import Offer
from kvshare_research.privacy.settings import BudgetSettings

from .assembly import component
from .prompts import Hasher

if TYPE_CHECKING:
    from kvshare_research.driver.cluster import Cluster
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
        if deepest in self._texts:
            self._texts.move_to_end(deepest)
            return
        self._texts[deepest] = tokens[: offer.blocks[-1] * size].copy()
        self._token_count += offer.blocks[-1] * size
        for name, blocks in zip(offer.names, offer.blocks, strict=True):
            self._deepest[name] = (deepest, blocks * size)
        while self._token_count > self._tokens_max and len(self._texts) > 1:
            gone, text = self._texts.popitem(last=False)
            self._token_count -= len(text)
            self._deepest = {n: row for n, row in self._deepest.items() if row[0] != gone}

    def get(self, name: bytes) -> NDArray[np.uint32] | None:
        """The tokens of a prefix; None if it was forgotten."""
        row = self._deepest.get(name)
        return None if row is None else self._texts[row[0]][: row[1]]


class Discloser:
    """The desk of one case, in front of a cluster's router. Noise comes from the system's entropy."""

    def __init__(self, cluster: Cluster, hasher: Hasher, desk: Desk) -> None:
        self.desk = desk
        self.texts = Texts()
        self._cluster = cluster
        self._hasher = hasher

    def arrive(self, request: Request, tokens: NDArray[np.uint32], now_us: int) -> tuple[Request, Chain]:
        """The request with the scopes and chain it has now. Releases due by now come first, its own vote after."""
        self._advance(now_us)
        assert self._cluster.router is not None
        prompt = self._hasher.prompt(request, tokens, warmup=False, released=self._cluster.router.promoted)
        if prompt.offer is not None:
            self.texts.note(prompt.offer, tokens)
        self.desk.vote(prompt.offer, request)
        if self.desk.policy.period_us == 0:
            self._advance(now_us)
        return prompt.request, prompt.chain

    def notes(self) -> dict[str, Any]:
        """What was spent and released, for the record of the run."""
        return {
            "released_prefixes": len(self.desk.released),
            "shared_prefixes": self._shared(),
            "spent": self.desk.spent(),
            **self.desk.counters,
        }

    def _shared(self) -> int:
        return 0 if self._cluster.router is None else len(self._cluster.router.promoted)

    def _advance(self, now_us: int) -> None:
        if self.desk.advance(now_us):
            self._cluster.feed(m.PrefixesReleased(prefixes=self.desk.prefixes()))


def discloser(config: Mapping[str, Any], cluster: Cluster, hasher: Hasher) -> Discloser | None:
    """What stands in front of the router in this case, or None where nothing is ever disclosed."""
    policy = component(config, "disclosure")
    if isinstance(policy, NeverDisclosure):
        return None
    settings: BudgetSettings = component(config, "budget")
    made = Discloser(cluster, hasher, settings.desk(policy, hasher.directory, SystemNoise()))
    cluster.text_of = made.texts.get
    return made
