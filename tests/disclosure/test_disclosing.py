"""A released prefix gets its wider scope and nothing else does: by real chains, real routers and real workers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvshare_research.core import messages as m
from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import Request, Segment
from kvshare_research.core.rights import EVERYBODY, GROUP, PUBLIC, TENANT, USER, Membership, Scope
from kvshare_research.disclosure.after_k import AfterK
from kvshare_research.disclosure.dp_batch import DpBatch
from kvshare_research.disclosure.dp_optimal import DpOptimal
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.guard.disclosing import widened
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.namespace import ModelSpace
from kvshare_research.privacy.desk import Desk
from kvshare_research.privacy.ledger import Budget, Ledger
from kvshare_research.study.prompts import Hasher, Prompt
from tests.core.fleet import fleet, only

SIZE = 16
TENANTS = 6
DIRECTORY = Layered().directory(
    Directory(
        tenants=tuple(f"t{i}" for i in range(TENANTS)),
        groups=("g",),
        users=tuple((f"u{i}", i + 1) for i in range(TENANTS)),
        scopes=(
            Scope(PUBLIC, 0),
            Scope(GROUP, 1),
            *(Scope(TENANT, i + 1) for i in range(TENANTS)),
            *(Scope(USER, i + 1) for i in range(TENANTS)),
        ),
        memberships=tuple(((i + 1, 1), Membership(True, 1, 1 << 60)) for i in range(TENANTS)),
    )
)
HASHER = Hasher(
    tenancy=Layered(),
    directory=DIRECTORY,
    ring=KeyRing(RootSecret.from_seed(0)),
    space=ModelSpace(model="m", dtype="float32", block_tokens=SIZE),
    discloses=True,
)


def prompt(
    tenant: int, counts: tuple[int, int, int], *, front: Scope = EVERYBODY, number: int = 1,
    released: frozenset[bytes] = frozenset(),
) -> Prompt:  # fmt: skip
    """A system prompt of scope `front`, examples of the tenant's, a question of the user's; only the last differs."""
    scopes = (front, Scope(TENANT, tenant), Scope(USER, tenant))
    segments = tuple(
        Segment(scope_id=DIRECTORY.scope_id(s), token_count=n) for s, n in zip(scopes, counts, strict=True) if n
    )
    shared = counts[0] + counts[1]
    tokens = np.concatenate([np.arange(shared), np.arange(counts[2]) + 10_000 * number]).astype(np.uint32)
    request = Request(
        request_id=number, tenant_id=tenant, user_id=tenant, segments=segments, output_tokens_max=1, ingress=0,
        arrival_us=number * 10_000_000,
    )  # fmt: skip
    return HASHER.prompt(request, tokens, warmup=False, released=released)


@given(st.integers(0, 70), st.integers(1, 150), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_names_are_the_wider_chain_and_only_tenant_text_is_offered(system: int, examples: int, question: int) -> None:
    one, two = (prompt(t, (system, examples, question), number=t) for t in (1, 2))
    if one.offer is None:
        return
    assert two.offer is not None
    assert one.offer.names == two.offer.names, "two tenants vote for one name"
    assert all(system < b * SIZE <= system + examples for b in one.offer.blocks), "what the user wrote is never offered"
    released = frozenset(one.offer.names[:1])
    wide = prompt(1, (system, examples, question), number=1, released=released)
    depth = one.offer.blocks[0]
    assert wide.chain.block_hash(depth - 1) == one.offer.names[0], "the name is the hash it gets"
    assert wide.chain.scope_at(depth - 1) == one.offer.wider_id
    for i in range(depth, wide.chain.block_count):
        assert wide.chain.scope_at(i) == one.chain.scope_at(i), "nothing behind the released prefix is wider"
    assert sum(s.token_count for s in wide.request.segments) == one.request.token_count


def test_what_is_not_released_keeps_its_chain() -> None:
    before = prompt(1, (32, 100, 40))
    after = prompt(1, (32, 100, 40), released=frozenset({b"x" * 16}))
    assert before.chain == after.chain
    assert before.offer is not None
    assert set(before.offer.names).isdisjoint(before.chain.block_hashes(2, before.chain.block_count))


def test_a_prefix_behind_group_text_widens_to_the_group_only() -> None:
    group = Scope(GROUP, 1)
    offer = prompt(1, (32, 100, 40), front=group).offer
    assert offer is not None
    assert offer.wider_id == DIRECTORY.scope_id(group)
    public = prompt(1, (32, 100, 40)).offer
    assert public is not None
    assert set(public.names).isdisjoint(offer.names), "a vote in the group is none in public"


def test_text_of_a_group_is_not_offered_to_everybody_by_who_has_left_it() -> None:
    """The text before it still is; a member's examples behind it are offered to the group."""
    left = replace(HASHER, directory=DIRECTORY.revoked(1, 1))
    scopes = (Scope(TENANT, 1), Scope(GROUP, 1), Scope(TENANT, 1))
    for counts, blocks in (((0, 64, 64), None), ((2 * SIZE, 64, 64), 2)):
        asked = tuple(
            Segment(scope_id=DIRECTORY.scope_id(s), token_count=n) for s, n in zip(scopes, counts, strict=True) if n
        )
        request = structs.replace(prompt(1, (16, 16, 16)).request, segments=asked)
        offer = left.prompt(request, np.arange(sum(counts), dtype=np.uint32), warmup=False).offer
        assert (offer and offer.blocks[-1]) == blocks
    member = prompt(1, (64, 64, 16), front=Scope(GROUP, 1)).offer
    assert member is not None
    assert DIRECTORY.scopes[member.wider_id] == Scope(GROUP, 1)


def test_promotion_in_the_fleet() -> None:
    """Before: each tenant computes its own copy. From the release on everybody hits, also the first; the tenants' user
    text is never shared; demotion makes it private again."""
    sim = fleet(1, capacity=256, directory=DIRECTORY)
    desk = Desk(
        AfterK(k=3, unit="tenant"),
        SeededNoise(0),
        Ledger(Budget(epsilon=1, delta=0.1, unit="tenant", population=6), None),
    )
    reused = {}
    for number, tenant in enumerate([1, 2, 3, 4, 5, 6], start=1):
        asked = prompt(tenant, (32, 96, 40), number=number, released=sim.router.promoted)
        desk.vote(asked.offer, asked.request)
        sim.inject(structs.replace(asked.request, arrival_us=sim.now_us + 1), asked.chain)
        sim.run()
        if desk.advance(sim.now_us):
            sim.at(sim.now_us, m.PrefixesReleased(prefixes=desk.prefixes()))
            sim.run()
        outcome = only(sim.outcomes, number)
        reused[number] = outcome.cross_tenant_tokens
    assert reused == {1: 0, 2: 32, 3: 32, 4: 128, 5: 128, 6: 128}
    sim.at(sim.now_us, m.PrefixesReleased(prefixes=()))
    sim.run()
    assert sim.router.promoted == frozenset()
    assert sim.workers[0].keeping.block_count == 0
    assert sim.workers[0].ledger.pinned_blocks == 0


def test_a_spent_budget_releases_nothing_more_and_is_counted() -> None:
    policy = DpBatch(epsilon=1.0, delta=1e-3, l0=2, unit="tenant", period_us=10)
    desk = Desk(policy, SeededNoise(0), Ledger(Budget(epsilon=1.0, delta=0.004, unit="tenant", population=6), None))
    for now_us in range(0, 60, 10):
        desk.vote(prompt(1, (32, 96, 40)).offer, prompt(1, (32, 96, 40)).request)
        desk.advance(now_us)
    assert desk.counters["refused_releases"] >= 1
    assert desk.ledger is not None
    assert desk.ledger.spent.epsilon <= 1.0
    assert desk.ledger.refused == desk.counters["refused_releases"]


def test_a_request_without_a_user_does_not_vote_where_users_are_the_unit() -> None:
    desk = Desk(AfterK(k=2, unit="user"), SeededNoise(0), None)
    asked = prompt(1, (32, 96, 40))
    desk.vote(asked.offer, structs.replace(asked.request, user_id=0))
    assert desk.counters["unknown_unit"] == 1


def test_users_of_no_tenant_do_not_vote() -> None:
    """Each would count as of a tenant of its own, and as many as are asked for could release what they like."""
    desk = Desk(AfterK(k=3, unit="user"), SeededNoise(0), None)
    asked = prompt(1, (32, 96, 40))
    for user in range(1, 9):
        desk.vote(asked.offer, structs.replace(asked.request, tenant_id=-(user % 2), user_id=user))
        desk.advance(0)
    assert not desk.released
    assert desk.counters["unknown_unit"] == 8


def test_a_flood_of_other_prefixes_takes_back_nothing_that_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvshare_research.privacy.desk.OFFERS_MAX", 8)
    desk = Desk(AfterK(k=2, unit="tenant"), SeededNoise(0), None)
    for tenant in (1, 2):
        asked = prompt(tenant, (32, 96, 40))
        desk.vote(asked.offer, asked.request)
    desk.advance(0)
    before = desk.prefixes()
    for size in range(1, 9):
        flood = prompt(3, (32, 96 + 16 * size, 40), front=Scope(TENANT, 3))
        desk.vote(flood.offer, flood.request)
        desk.advance(0)
    assert before == desk.prefixes() != ()
    assert desk.counters["forgotten_prefixes"] == 0


@pytest.mark.parametrize("keep", [1, 3])
def test_a_released_prefix_ages_out(keep: int) -> None:
    """Presence depends on releases alone: without new votes it is dropped after `keep` releases."""
    policy = DpOptimal(epsilon=50.0, delta=1e-3, unit="tenant", period_us=10)
    ledger = Ledger(Budget(epsilon=1e4, delta=0.1, unit="tenant", population=6), None)
    desk = Desk(policy, SeededNoise(0), ledger, keep_releases=keep)
    for tenant in (1, 2):
        asked = prompt(tenant, (32, 96, 40))
        desk.vote(asked.offer, asked.request)
    sizes = []
    for now_us in range(10, 60, 10):
        desk.advance(now_us)
        sizes.append(len(desk.released) > 0)
    assert sizes == [i < keep for i in range(5)]


def test_what_is_chosen_once_is_not_dropped_while_requests_go_by() -> None:
    """An online policy is asked at every request; its releases are not each a reason to age."""
    desk = Desk(AfterK(k=2, unit="tenant"), SeededNoise(0), None, keep_releases=1)
    for tenant in (1, 2, 1, 2, 1, 2):
        asked = prompt(tenant, (32, 96, 40))
        desk.vote(asked.offer, asked.request)
        desk.advance(0)
    assert len(desk.released) > 0


def test_an_empty_segment_of_the_tenant_moves_with_the_front() -> None:
    """Else the prompt would tighten before it widens, and could not be hashed."""
    own, public = DIRECTORY.scope_id(Scope(TENANT, 1)), DIRECTORY.scope_id(Scope(PUBLIC, 0))
    segments = tuple(Segment(scope_id=own, token_count=n) for n in (0, 32, 0, 20))
    moved, ids = widened(segments, (own,) * 4, public, 32, DIRECTORY)
    assert ids == (public, public, own, own)
    assert [s.token_count for s in moved] == [0, 32, 0, 20]
