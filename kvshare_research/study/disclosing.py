"""Disclosure on a live cluster: at each arrival the desk votes and releases, and chains follow what is released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core import messages as m
from kvshare_research.core.nouns import Chain, Request
from kvshare_research.disclosure.never import NeverDisclosure
from kvshare_research.disclosure.noise import SystemNoise
from kvshare_research.privacy.settings import BudgetSettings

from .assembly import component
from .prompts import Hasher

if TYPE_CHECKING:
    from kvshare_research.driver.cluster import Cluster
    from kvshare_research.privacy.desk import Desk


class Discloser:
    """The desk of one case, in front of a cluster's router. Noise comes from the system's entropy."""

    def __init__(self, cluster: Cluster, hasher: Hasher, desk: Desk) -> None:
        self.desk = desk
        self._cluster = cluster
        self._hasher = hasher

    def arrive(self, request: Request, tokens: NDArray[np.uint32], now_us: int) -> tuple[Request, Chain]:
        """The request with the scopes and chain it has now. Releases due by now come first, its own vote after."""
        self._advance(now_us)
        prompt = self._hasher.prompt(request, tokens, warmup=False, released=self.desk.released)
        self.desk.vote(prompt.offer, request)
        if self.desk.policy.period_us == 0:
            self._advance(now_us)
        return prompt.request, prompt.chain

    def notes(self) -> dict[str, Any]:
        """What was spent and released, for the record of the run."""
        return {"released_prefixes": len(self.desk.released), "spent": self.desk.spent(), **self.desk.counters}

    def _advance(self, now_us: int) -> None:
        if self.desk.advance(now_us):
            self._cluster.feed(m.PrefixesReleased(names=tuple(sorted(self.desk.released))))


def discloser(config: Mapping[str, Any], cluster: Cluster, hasher: Hasher) -> Discloser | None:
    """What stands in front of the router in this case, or None where nothing is ever disclosed."""
    policy = component(config, "disclosure")
    if isinstance(policy, NeverDisclosure):
        return None
    settings: BudgetSettings = component(config, "budget")
    return Discloser(cluster, hasher, settings.desk(policy, hasher.directory, SystemNoise()))
