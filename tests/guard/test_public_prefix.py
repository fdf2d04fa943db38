"""256 tenants with one public prefix of 1,024 tokens: stored once, hit 255 times, and no tail is ever shared."""

from __future__ import annotations

import numpy as np

from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import AccountSpec, Chain, Segment
from kvshare_research.core.rights import EVERYBODY, TENANT, Scope
from kvshare_research.guard.isolated import Isolated
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.namespace import ModelSpace, chain

from .fleet import Fleet

TENANTS, PREFIX_TOKENS, TAIL_TOKENS = 256, 1024, 48
SPACE = ModelSpace(model="m", dtype="float16", block_tokens=16)
RING = KeyRing(RootSecret.from_seed(0))
BASE = Directory(
    tenants=tuple(f"t{i}" for i in range(TENANTS)),
    groups=(),
    scopes=(EVERYBODY, *(Scope(TENANT, i + 1) for i in range(TENANTS))),
)
TOKENS = np.arange(PREFIX_TOKENS + TAIL_TOKENS, dtype=np.uint32)  # the tails are the same text too


def chains(tenancy: Layered | Isolated) -> list[Chain]:
    directory = tenancy.directory(BASE)
    made = []
    for tenant in range(1, TENANTS + 1):
        asked = [Segment(scope_id=0, token_count=PREFIX_TOKENS), Segment(scope_id=tenant, token_count=TAIL_TOKENS)]
        ids = tenancy.scopes(tenant, asked, directory, 0, 0)
        made.append(chain(TOKENS, asked, ids, directory=directory, ring=RING, space=SPACE))
    return made


def test_the_prefix_is_stored_once_and_hit_by_all_others() -> None:
    stored: set[bytes] = set()
    hits = 0
    for one in chains(Layered()):
        prefix, tail = set(one.block_hashes(0, 64)), set(one.block_hashes(64, one.block_count))
        hits += prefix <= stored
        assert not tail & stored, "a tail met another tenant's"
        stored |= prefix | tail
    assert hits == TENANTS - 1
    assert len(stored) == 64 + TENANTS * TAIL_TOKENS // 16


def test_isolated_it_is_stored_256_times() -> None:
    """The pair of the test above: the flip from public to private takes the sharing away, with all of its hashes."""
    private = chains(Isolated())
    assert len({h for one in private for h in one.block_hashes(0, 64)}) == 64 * TENANTS
    public = set(chains(Layered())[0].block_hashes(0, 64))
    assert not public & {h for one in private for h in one.block_hashes(0, 64)}


def test_no_message_or_outcome_carries_a_token_or_a_key() -> None:
    """A canary text goes through router, workers and wires; nothing that they say contains it."""
    canary = 987_654
    fleet = Fleet(
        salt=1, gullible=False, accounts=[AccountSpec(scope_id=i, reserved_blocks=0, limit_blocks=14) for i in range(5)]
    )
    said: list[str] = []
    for executor in (0, 1):
        fleet.ask(1, [(0, canary, 8), (2, canary + 1, 5)], executor)
        while fleet.wires:
            said.append(repr(fleet.wires[0].event))
            fleet.deliver(0)
    said.append(repr(fleet.records) + repr(fleet.router.replica.store.rows(0)) + repr(fleet.directory))
    text = " ".join(said)
    tokens = [str((canary + k) * 1000 + i) for k in (0, 1) for i in range(8)]
    assert "FetchLanded" in text or "Dispatched" in text
    assert not any(token in text for token in tokens)
    assert RootSecret.from_seed(1).expose().hex() not in text
    assert repr(RootSecret.from_seed(1).expose())[2:-1] not in text
