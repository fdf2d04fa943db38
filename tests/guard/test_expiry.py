"""A membership that has run out is worth no more than one that was revoked: whole requests, shipped router and workers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs

from kvshare_research.core.nouns import AccountSpec, Request, Segment, Status
from kvshare_research.core.rights import TENANT, Scope
from kvshare_research.driver.cluster import Cluster
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.study.disclosing import on_cluster
from kvshare_research.study.prompts import Hasher

from .fleet import BASE, GUILD, LAYERED, SPACE, Fleet

NOW_US, EXPIRY_US, LATE = 1000, 500, 3
NEVER = {"disclosure": {"_target_": "kvshare_research.disclosure.never.NeverDisclosure"}}


@pytest.mark.parametrize("left", ["expired", "revoked"])
def test_who_left_a_group_is_bound_by_its_own_quota_and_takes_nothing_from_others(left: str) -> None:
    """The group's account is of a stronger class and has no limit here; that of the one who left has 2 blocks."""
    base = BASE.granted(LATE, 1, expiry_us=EXPIRY_US) if left == "expired" else BASE.granted(LATE, 1).revoked(LATE, 1)
    own = base.scope_id(Scope(TENANT, LATE))
    accounts = tuple(
        AccountSpec(scope_id=i, reserved_blocks=0, limit_blocks=2 if i == own else 14, priority=int(scope == GUILD))
        for i, scope in enumerate(base.scopes)
    )
    fleet = Fleet(salt=1, gullible=False, accounts=())
    fleet.directory = LAYERED.directory(replace(base, accounts=accounts))
    fleet.router, fleet.workers = fleet._router(), [fleet._worker(node) for node in range(3)]
    fleet.now_us = NOW_US

    def status(tenant: int, text: int, scope: Scope) -> Status:
        fleet.ask(tenant, [(fleet.directory.scope_id(scope), text, 8)], 0)
        fleet.settle()
        return fleet.records[len(fleet.asked)][0].status

    assert {status(LATE, text, GUILD) for text in range(10, 15)} == {Status.REJECTED}
    assert fleet.workers[0].ledger.accounts[base.scope_id(GUILD)].used == 0, "the group pays for who has left"
    assert status(1, 50, Scope(TENANT, 1)) == Status.DONE
    assert status(1, 51, GUILD) == Status.DONE, "a member still has the group's account"


def test_on_a_cluster_a_prompt_hashed_before_the_expiry_is_hashed_again_at_its_arrival() -> None:
    directory = LAYERED.directory(BASE.granted(LATE, 1, expiry_us=EXPIRY_US))
    hasher = Hasher(tenancy=LAYERED, directory=directory, ring=KeyRing(RootSecret.from_seed(0)), space=SPACE)
    cluster: Any = SimpleNamespace(prepare=None)
    assert on_cluster(NEVER, cast(Cluster, cluster), hasher) is None
    asked = (Segment(scope_id=directory.scope_id(GUILD), token_count=8),)
    request = Request(
        request_id=1, tenant_id=LATE, segments=asked, output_tokens_max=1, ingress=0, arrival_us=0
    )  # fmt: skip
    tokens = np.arange(8, dtype=np.uint32)
    early = hasher.prompt(request, tokens, warmup=False)
    assert early.request.segments == asked
    for at_us, scope in ((EXPIRY_US - 1, GUILD), (EXPIRY_US, Scope(TENANT, LATE))):
        made, chain = cluster.prepare(structs.replace(early.request, arrival_us=at_us), tokens, at_us)
        assert [directory.scopes[s.scope_id] for s in made.segments] == [scope]
        assert [directory.scopes[s] for s, _ in chain.scope_ends] == [scope]
    forever: Any = SimpleNamespace(prepare=None)
    on_cluster(NEVER, cast(Cluster, forever), replace(hasher, directory=LAYERED.directory(BASE)))
    assert forever.prepare is None, "where nothing runs out nothing is hashed twice"
