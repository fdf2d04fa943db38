"""Scopes only tighten; nothing is shared more widely than its template and the text before it allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from kvshare_research.core import rights

from .kit import Obligation, claim, theorem
from .spec import Permission, membership, permitted, reader, same, scope, scope_ok
from .symexec import lift, paths

ACTIVE = z3.Function("member", z3.IntSort(), z3.IntSort(), z3.BoolSort())  # (tenant, group)
OWNER = {level: z3.Function(f"owner{level}", z3.IntSort(), z3.IntSort()) for level in (rights.USER, rights.SESSION)}


def is_party(tenant: Any, s: rights.Scope) -> Any:
    """What `belongs` must mean: the tenant is a party to the scope."""
    return z3.Or(
        s.level == 0,
        z3.And(s.level == 1, ACTIVE(tenant, s.party)),
        z3.And(s.level == 2, s.party == tenant),
        z3.And(s.level == 3, OWNER[3](s.party) == tenant, s.party != 0),
        z3.And(s.level == 4, OWNER[4](s.party) == tenant, s.party != 0),
    )


def reads(r: rights.Reader, s: rights.Scope) -> Any:
    """The policy of `spec.permitted` for a reader with the memberships of ACTIVE, at a time before any expiry."""
    ghost = Permission("any")
    ghost.given, ghost.until = ACTIVE(r.tenant, s.party), z3.IntVal(1)
    return permitted(s, r, ghost, z3.IntVal(0))


def genuine(r: rights.Reader) -> Any:
    """A reader's user and session, where it has one, are its tenant's."""
    mine = [z3.Or(p == 0, OWNER[level](p) == r.tenant) for level, p in ((3, r.user), (4, r.session))]
    return z3.And(r.tenant != 0, *mine)


@theorem(
    "SCOPE",
    "scopes only tighten, along a chain of any length; an assigned scope is never wider than asked, or than before",
    rights.assign,
    rights.tightens,
)
def tighten() -> Iterator[Obligation]:
    before, asked, tenant, belongs = scope("before"), scope("asked"), z3.Int("tenant"), z3.Bool("belongs")
    pre = {"before": scope_ok(before), "asked": scope_ok(asked), "tenant": tenant > 0}
    for i, path in enumerate(paths(rights.assign, before, asked, belongs, tenant, assume=list(pre.values()))):
        got, assume = path.value, {**pre, "path": path.condition}
        yield claim(f"step/{i}", assume, z3.And(lift(rights.tightens, before, got), scope_ok(got)))
        yield claim(f"not wider/{i}", assume, z3.And(got.level >= asked.level, got.level >= before.level))
        as_asked = z3.And(belongs, z3.Or(asked.level > before.level, same(asked, before)))
        two_groups = z3.And(belongs, asked.level == 1, before.level == 1, z3.Not(same(asked, before)))
        own = same(got, rights.Scope(rights.TENANT, tenant))
        needed = z3.And(z3.Implies(as_asked, same(got, asked)), z3.Implies(two_groups, own))
        yield claim(f"no tighter than needed/{i}", assume, needed)
    a, b, c = scope("a"), scope("b"), scope("c")
    steps = {"1": lift(rights.tightens, a, b), "2": lift(rights.tightens, b, c)}
    yield claim("steps compose: any finite chain", steps, lift(rights.tightens, a, c))
    exact = z3.Or(same(a, b), b.level > a.level)
    yield claim("tightens means equal or narrower", {}, lift(rights.tightens, a, b) == exact)


@theorem(
    "SHARE",
    "whoever else may read a segment could read what its template asked for and all text before it; what a tenant is "
    "no party to, it keeps to itself",
    rights.assign,
)
def share() -> Iterator[Obligation]:
    before, asked, tenant, r = scope("before"), scope("asked"), z3.Int("tenant"), reader()
    belongs = is_party(tenant, asked)
    pre = {
        "scopes": z3.And(scope_ok(before), scope_ok(asked)),
        "before was assigned to this tenant": z3.Or(is_party(tenant, before), same(before, rights.SEALED)),
        "another tenant": z3.And(genuine(r), r.tenant != tenant, tenant > 0),
    }
    flag = z3.Bool("belongs")
    facts = {**pre, "belongs is truthful": flag == belongs}
    for i, path in enumerate(paths(rights.assign, before, asked, flag, tenant, assume=list(facts.values()))):
        assume = {**facts, "path": path.condition}
        shared = {**assume, "read by another": reads(r, path.value)}
        yield Obligation(
            name=f"others/{i}",
            assume=assume,
            goal=z3.Implies(shared["read by another"], z3.And(reads(r, asked), reads(r, before))),
        )
        yield claim(
            f"again assigned to this tenant/{i}",
            assume,
            z3.Or(is_party(tenant, path.value), same(path.value, rights.SEALED)),
        )


@theorem(
    "SHARD",
    "the lattice restricted to tenant scope is the strict partition: every segment stays its tenant's",
    rights.assign,
)
def shard() -> Iterator[Obligation]:
    asked, tenant, flag = scope("asked"), z3.Int("tenant"), z3.Bool("belongs")
    own = rights.Scope(rights.TENANT, tenant)
    pre = {
        "asked": z3.And(scope_ok(asked), asked.level <= rights.TENANT),
        "tenant": tenant > 0,
        "belongs is truthful": flag == is_party(tenant, asked),
    }
    for i, path in enumerate(paths(rights.assign, own, asked, flag, tenant, assume=list(pre.values()))):
        yield claim(f"{i}", {**pre, "path": path.condition}, same(path.value, own))
    r = reader()
    for i, path in enumerate(paths(rights.may_read, own, r, membership(), z3.Int("now"), assume=[tenant > 0])):
        yield claim(
            f"read by its tenant only/{i}",
            {"path": path.condition, "tenant": tenant > 0},
            (r.tenant == tenant) == path.value,
        )
