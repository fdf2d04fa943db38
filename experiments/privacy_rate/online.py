"""Releasing while votes arrive: the share of cold starts saved when a release serves only who comes after it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvshare_research.core.ports import Ballot, Disclosure
from kvshare_research.disclosure.noise import SeededNoise

from .__main__ import TEMPLATES, World

CHECKS, VOTES = 64, 4


def capped(given: World) -> World:
    """The same units with the `VOTES` templates that each asks for most."""
    order = np.lexsort((-given.requests, given.owner))
    owner = given.owner[order]
    kept = order[np.arange(len(owner)) - np.searchsorted(owner, owner) < VOTES]
    return replace(given, owner=given.owner[kept], template=given.template[kept], requests=given.requests[kept])


def saved_online(policy: Disclosure, given: World, seed: int) -> float:
    """First uses fall on `CHECKS` moments at random, with a release after each; of what sharing everything saves."""
    votes = capped(given)
    when = np.random.default_rng(seed).integers(0, CHECKS, len(votes.owner))
    first = np.full(TEMPLATES, CHECKS)
    state, noise = policy.initial_state(), SeededNoise(seed)
    for check in range(CHECKS):
        for i in np.flatnonzero(when == check).tolist():
            name = int(votes.template[i]).to_bytes(16, "big")
            state = policy.observe(state, Ballot(unit_id=int(votes.owner[i]) + 1, names=(name,), blocks=(1,)))
        state, names = policy.release(state, noise)
        first[[int.from_bytes(n, "big") for n in names]] = check
    later = when > first[votes.template]
    ideal = given.blocks * np.maximum(np.bincount(given.template, minlength=TEMPLATES) - 1, 0)
    return float((given.blocks[votes.template] * later).sum() / ideal.sum())
