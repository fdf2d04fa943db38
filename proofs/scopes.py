"""Scopes only tighten; nothing is shared more widely than its template and the text before it allow; the judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from kvshare_research.core import judging, rights
from kvshare_research.core.nouns import Chain, Match, MissReason, Run

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


class _Rows:
    """A directory of symbolic scopes and memberships, by the position of the scope."""

    def __init__(self, count: int) -> None:
        self.scopes = tuple(scope(f"scope{i}") for i in range(count))
        self.rows = tuple(membership(f"row{i}") for i in range(count))
        self.ghosts = tuple(Permission(f"ghost{i}") for i in range(count))

        self.tenant = reader().tenant

    def membership(self, tenant_id: Any, scope: rights.Scope) -> rights.Membership:
        """The row of the reader's tenant; asked for anybody else's, one that has nothing to do with it."""
        if not z3.eq(tenant_id, self.tenant):
            return membership("another tenant's row")
        return next(row for s, row in zip(self.scopes, self.rows, strict=True) if s is scope)


@theorem(
    "JUDGE",
    "what passes the judge is readable, block by block, and is part of what was matched; nothing readable is held "
    "back; a denial names its reason (runs of one and two scopes, none to two holders; more by the same step)",
    judging.judge,
    judging.cut,
    rights.may_read,
)
def judge() -> Iterator[Obligation]:
    yield from _judged(1, 0)
    yield from _judged(1, 1)
    yield from _judged(2, 1)
    # with two holders the scopes of interest are one for all and one for some
    yield from _judged(2, 2, levels=(rights.PUBLIC, rights.TENANT))


def _judged(scope_count: int, holder_count: int, levels: tuple[int, ...] = ()) -> Iterator[Obligation]:
    rows, r, now, block = _Rows(scope_count), reader(), z3.Int("now"), z3.Int("block")
    held = [z3.Int(f"held{i}") for i in range(holder_count)]
    ends = [z3.Int(f"end{i}") for i in range(scope_count)]
    chain = Chain(hashes=b"", scope_ends=tuple(enumerate(ends)), block_tokens=1)
    match = Match(runs=tuple(Run(node=i, tier=0, block_count=h) for i, h in enumerate(held)))
    level_group = [s.level == rights.GROUP for s in rows.scopes]
    pre = {
        "scopes": z3.And(*map(scope_ok, rows.scopes)),
        "levels": z3.And(*[s.level == level for s, level in zip(rows.scopes, levels, strict=False)]),
        "ghosts": z3.And(*[g.agrees(m) for g, m in zip(rows.ghosts, rows.rows, strict=True)]),
        "rows are of groups": z3.And(
            *[z3.Or(g, z3.Not(m.active)) for g, m in zip(level_group, rows.rows, strict=True)]
        ),
        "ends rise": z3.And(*[a < b for a, b in zip([0, *ends], ends, strict=False)]),
        "held": z3.And(*[z3.And(h >= 1, h <= ends[-1]) for h in held]),
    }
    may = [permitted(s, r, g, now) for s, g in zip(rows.scopes, rows.ghosts, strict=True)]
    inside = [z3.And(start <= block, block < end) for start, end in zip([0, *ends], ends, strict=False)]
    allowed = z3.Or(*[z3.And(here, *may[: k + 1]) for k, here in enumerate(inside)])
    # the first scope that may not be read decides the reason: an active row that does not help has run out
    expired = z3.Or(*[z3.And(*may[:k], z3.Not(may[k]), rows.rows[k].active) for k in range(scope_count)])
    for i, path in enumerate(paths(judging.judge, match, chain, r, rows, now, assume=list(pre.values()))):
        verdict, assume = path.value, {**pre, "path": path.condition, "block": block >= 0}
        usable = [next((run.block_count for run in verdict.runs if run.node == k), 0) for k in range(holder_count)]
        exact = [(block < u) == z3.And(block < h, allowed) for u, h in zip(usable, held, strict=True)]
        name = f"{scope_count} scopes, {holder_count} holders/{i}"
        yield claim(name, assume, z3.And(*exact, *[run.block_count >= 1 for run in verdict.runs]))
        lost = z3.Or(*[u < h for u, h in zip(usable, held, strict=True)])
        yield claim(f"{name} denied", assume, lost == bool(verdict.denied))
        for reason, _ in verdict.denied:
            yield claim(f"{name} why", assume, expired == (reason == MissReason.DENIED_EXPIRED))
