"""Every tenancy file, found in conf/: scopes only tighten, directories are idempotent, floors fit, nothing widens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.judging import judge
from kvshare_research.core.nouns import HASH_BYTES, AccountSpec, Chain, Match, MissReason, Run, Segment
from kvshare_research.core.ports import Tenancy
from kvshare_research.core.rights import (
    EVERYBODY,
    GROUP,
    PUBLIC,
    SEALED,
    SESSION,
    TENANT,
    USER,
    Reader,
    Scope,
    may_read,
    tightens,
)
from kvshare_research.guard.isolated import Isolated
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.one_group import OneGroup
from kvshare_research.guard.per_user import PerUser
from kvshare_research.guard.shard import Shard

FILES = sorted((Path(__file__).parents[2] / "conf" / "tenancy").glob("*.yaml"))
BASE = (
    Directory(
        tenants=("acme", "bell", "corp"),
        groups=("guild", "club"),
        users=(("ann", 1), ("bob", 1), ("cid", 2)),
        scopes=(EVERYBODY, Scope(GROUP, 1), Scope(GROUP, 2), Scope(TENANT, 1), Scope(TENANT, 2)),
    )
    .granted(1, 1)
    .granted(1, 2)
    .granted(2, 1)
)
DEEP = BASE.with_scopes([Scope(USER, 1), Scope(USER, 2), Scope(USER, 3), Scope(SESSION, 7)])


def load(path: Path) -> Tenancy:
    tenancy: Tenancy = instantiate(OmegaConf.load(path))
    return tenancy


def test_the_four_tenancies_are_there() -> None:
    assert [f.stem for f in FILES if f.stem in ("isolated", "layered", "one_group", "shard")] == [
        "isolated",
        "layered",
        "one_group",
        "shard",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
@given(data=st.data(), tenant=st.integers(1, 3), capacity=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_contract(path: Path, data: st.DataObject, tenant: int, capacity: int) -> None:
    tenancy = load(path)
    directory = tenancy.directory(BASE)
    assert tenancy.directory(directory) == directory
    assert directory.scopes[: len(BASE.scopes)] == BASE.scopes, "ids of the catalogue must stay"
    asked = data.draw(st.lists(st.integers(0, len(BASE.scopes) - 1), min_size=1, max_size=6))
    got = tenancy.scopes(tenant, [Segment(scope_id=i, token_count=5) for i in asked], directory, 0, 0)
    assert len(got) == len(asked)
    scopes = [directory.scopes[i] for i in got]
    assert all(tightens(a, b) for a, b in pairwise(scopes))
    reader = directory.reader(tenant)
    for scope in scopes:
        assert may_read(scope, reader, directory.membership(tenant, scope), 0), "a tenant can read what it writes"
    accounts = tenancy.accounts(directory, capacity)
    assert [a.scope_id for a in accounts] == list(range(len(directory.scopes)))
    assert sum(a.reserved_blocks for a in accounts) <= capacity
    assert all(0 <= a.reserved_blocks <= a.limit_blocks <= capacity for a in accounts)


@given(asked=st.lists(st.integers(0, len(DEEP.scopes) - 1), min_size=1, max_size=6), tenant=st.integers(1, 3))
@settings(max_examples=300, deadline=None)
@pytest.mark.parametrize("tenancy", [Layered(), Isolated()], ids=["layered", "isolated"])
def test_nothing_is_wider_than_asked(tenancy: Tenancy, asked: list[int], tenant: int) -> None:
    """Whoever may read a segment (other than the tenant itself) may read all that was asked up to it."""
    directory = tenancy.directory(DEEP)
    got = tenancy.scopes(tenant, [Segment(scope_id=i, token_count=1) for i in asked], directory, 0, 0)
    for k, scope_id in enumerate(got):
        scope = directory.scopes[scope_id]
        for other in (t for t in range(1, 4) if t != tenant):
            reader = Reader(other, user=3 if other == 2 else 0, session=0)
            if may_read(scope, reader, directory.membership(other, scope), 0):
                for earlier in asked[: k + 1]:
                    want = directory.scopes[earlier]
                    assert may_read(want, reader, directory.membership(other, want), 0)


def scopes_of(
    tenancy: Tenancy, tenant: int, *asked: Scope, base: Directory = BASE, now_us: int = 0, user_id: int = 0
) -> list[Scope]:
    base = base.with_scopes(asked)
    directory = tenancy.directory(base)
    segments = [Segment(scope_id=directory.scope_id(s), token_count=5) for s in asked]
    return [directory.scopes[i] for i in tenancy.scopes(tenant, segments, directory, now_us, user_id)]


def test_layered_cases() -> None:
    guild, club, acme, bell = Scope(GROUP, 1), Scope(GROUP, 2), Scope(TENANT, 1), Scope(TENANT, 2)
    assert scopes_of(Layered(), 1, EVERYBODY, guild, acme) == [EVERYBODY, guild, acme]
    assert scopes_of(Layered(), 1, guild, club, guild) == [guild, acme, acme], "two groups join to the tenant"
    assert scopes_of(Layered(), 2, EVERYBODY, club) == [EVERYBODY, bell], "not a member: kept to itself"
    assert scopes_of(Layered(), 1, bell, EVERYBODY) == [acme, acme], "another tenant's scope is never entered"
    ann, bob, cid = (Scope(USER, i) for i in (1, 2, 3))
    assert scopes_of(Layered(), 1, ann, bob) == [ann, SEALED], "two users: for nobody"
    assert scopes_of(Layered(), 1, cid) == [SEALED]
    assert scopes_of(Layered(), 1, Scope(SESSION, 7), Scope(SESSION, 8)) == [Scope(SESSION, 7), SEALED]
    assert scopes_of(Isolated(), 1, EVERYBODY, guild, ann) == [acme, acme, ann]
    assert scopes_of(Shard(), 1, EVERYBODY, guild, acme) == [acme] * 3
    assert scopes_of(PerUser(), 1, EVERYBODY, guild, acme, user_id=2) == [bob] * 3
    assert scopes_of(PerUser(), 1, EVERYBODY, Scope(SESSION, 7), user_id=2) == [bob, Scope(SESSION, 7)]
    assert scopes_of(PerUser(), 1, EVERYBODY, bob) == [acme, bob], "nobody in particular: the tenant's"
    assert scopes_of(PerUser(), 1, EVERYBODY, user_id=3) == [acme], "another tenant's user"
    assert {s.level for s in scopes_of(OneGroup(), 1, EVERYBODY, acme)} == {GROUP}


def test_isolated_equals_shard_when_nothing_is_tighter_than_a_tenant() -> None:
    for asked in ([EVERYBODY, Scope(GROUP, 1)], [Scope(TENANT, 1)], [Scope(GROUP, 2), EVERYBODY]):
        assert scopes_of(Isolated(), 1, *asked) == scopes_of(Shard(), 1, *asked)
        assert scopes_of(Layered(), 1, *[Scope(TENANT, 1)] * 3) == scopes_of(Shard(), 1, *[Scope(TENANT, 1)] * 3)


def test_shard_refuses_user_scopes_instead_of_widening_them() -> None:
    directory = Shard().directory(DEEP)
    assert scopes_of(Shard(), 1, EVERYBODY) == [Scope(TENANT, 1)], "what nobody asks for is in nobody's way"
    for tighter in (Scope(USER, 1), Scope(SESSION, 7)):
        with pytest.raises(ConfigError, match="use `layered`"):
            Shard().scopes(1, [Segment(scope_id=directory.scope_id(tighter), token_count=1)], directory, 0, 0)


def test_shard_shares_are_equal_and_configured_accounts_count_elsewhere() -> None:
    shares = Shard().accounts(Shard().directory(BASE), 100)
    assert [a.limit_blocks for a in shares if a.limit_blocks] == [33, 33, 33]
    configured = AccountSpec(scope_id=3, reserved_blocks=7, limit_blocks=9, priority=2)
    directory = Layered().directory(replace(BASE, accounts=(configured,)))
    assert Layered().accounts(directory, 100)[3] == configured
    assert OneGroup().accounts(OneGroup().directory(directory), 100)[3].reserved_blocks == 0


# ------------------------------------------------------------------ judge
def chain_of(*ends: tuple[int, int]) -> Chain:
    return Chain(hashes=bytes(HASH_BYTES * ends[-1][1]), scope_ends=ends, block_tokens=16)


def test_judge_cuts_at_the_first_unreadable_block_and_says_why() -> None:
    match = Match(runs=(Run(node=0, tier=0, block_count=9), Run(node=1, tier=1, block_count=2)))
    chain = chain_of((0, 3), (1, 6), (3, 9))
    mine = judge(match, chain, Reader(1, 0, 0), BASE, 0)
    assert (mine.readable_blocks, mine.denied, mine.runs) == (9, (), match.runs)
    guild = judge(match, chain, Reader(2, 0, 0), BASE, 0)
    assert [r.block_count for r in guild.runs] == [6, 2]
    assert guild.denied == ((MissReason.DENIED_SCOPE, 6),)
    public = judge(match, chain, Reader(3, 0, 0), BASE, 0)
    assert public.readable_blocks == 3
    late = BASE.granted(2, 1, expiry_us=100)
    assert judge(match, chain, Reader(2, 0, 0), late, 99).readable_blocks == 6
    assert judge(match, chain, Reader(2, 0, 0), late, 100).denied == ((MissReason.DENIED_EXPIRED, 3),)
    assert judge(match, chain, Reader(2, 0, 0), BASE.revoked(2, 1), 0).denied == ((MissReason.DENIED_SCOPE, 3),)
    nobody = judge(match, chain_of((3, 9)), Reader(2, 0, 0), BASE, 0)
    assert (nobody.runs, nobody.readable_blocks) == ((), 0)


def test_a_denial_is_no_denial_where_nothing_is_held() -> None:
    assert judge(Match(runs=()), chain_of((3, 4)), Reader(2, 0, 0), BASE, 0).denied == ()


def test_nobody_reads_the_sealed_scope_even_without_user_and_session() -> None:
    for level in (USER, SESSION, TENANT):
        assert not may_read(Scope(level, 0), Reader(0, 0, 0), BASE.membership(0, SEALED), 0)
    assert may_read(Scope(PUBLIC, 0), Reader(0, 0, 0), BASE.membership(0, SEALED), 0)


@pytest.mark.parametrize("tenancy", [Layered(), OneGroup()], ids=["layered", "one_group"])
def test_who_has_left_a_group_keeps_its_text_to_itself_however_it_left(tenancy: Tenancy) -> None:
    """A membership that ran out counts as little as a revoked one; until it runs out it counts."""
    group = "everybody" if isinstance(tenancy, OneGroup) else "guild"
    base = Directory(tenants=("acme",), groups=(group,)).granted(1, 1, expiry_us=100)
    shared, own = Scope(GROUP, 1), Scope(TENANT, 1)
    assert scopes_of(tenancy, 1, shared, base=base, now_us=99) == [shared]
    assert scopes_of(tenancy, 1, shared, base=base, now_us=100) == [own]
    directory = tenancy.directory(base.with_scopes([shared])).revoked(1, 1)
    got = tenancy.scopes(1, [Segment(scope_id=directory.scope_id(shared), token_count=5)], directory, 0, 0)
    assert [directory.scopes[i] for i in got] == [own]
