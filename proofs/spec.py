"""What the guard must guarantee, in Z3, written without looking at the code that provides it.

This page is the vocabulary of every theorem. If you disagree with a proof, disagree with something here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import z3

from kvshare_research.core import account as rules
from kvshare_research.core import rights


def ints(prefix: str, names: str) -> list[Any]:
    return [z3.Int(f"{prefix}.{name}") for name in names.split()]


def values(row: Any) -> list[Any]:
    """The fields of a frozen row, in order."""
    return [getattr(row, name) for name in row.__struct_fields__]


def every(conditions: Iterable[Any]) -> Any:
    """All of them; true for none, which `z3.And` would write as a term that no other solver reads."""
    found = list(conditions)
    return z3.And(*found) if found else z3.BoolVal(True)


def some(conditions: Iterable[Any]) -> Any:
    """At least one of them; false for none."""
    found = list(conditions)
    return z3.Or(*found) if found else z3.BoolVal(False)


def same(x: Any, y: Any) -> Any:
    """The two rows agree in every field."""
    return every([p == q for p, q in zip(values(x), values(y), strict=True)])


def larger(x: Any, y: Any) -> Any:
    return z3.If(x >= y, x, y)


# ------------------------------------------------------------------ quotas
def account(prefix: str) -> rules.Account:
    return rules.Account(*ints(prefix, "used pinned reserved limit priority"))


def node(prefix: str = "node") -> rules.Node:
    return rules.Node(*ints(prefix, "capacity used committed"))


def account_ok(a: rules.Account) -> Any:
    """Nothing negative; pins are held blocks; what is held is within the limit; so is the reservation."""
    return z3.And(
        0 <= a.pinned, a.pinned <= a.used, a.used <= a.limit, 0 <= a.reserved, a.reserved <= a.limit, 0 <= a.priority
    )


def unreclaimable(a: rules.Account) -> Any:
    """Blocks that an account of a lower class could never get back from `a`, together with `a`'s own guarantee."""
    return larger(z3.If(a.priority > 0, a.used, a.pinned), a.reserved)


def moved(a: rules.Account, **delta: Any) -> rules.Account:
    """The account with `delta` added to the named fields."""
    return rules.Account(*[getattr(a, name) + delta.get(name, 0) for name in a.__struct_fields__])


class World:
    """A node with two named accounts `a` and `v` and *any number* of others, seen only through two sums:
    `rest_used` = sum of used and `rest_floor` = sum of unreclaimable over the others. An operation touches at most
    two rows, so this loses nothing (theorem SUM)."""

    def __init__(self, prefix: str = "") -> None:
        self.node, self.a, self.v = node(prefix + "node"), account(prefix + "a"), account(prefix + "v")
        self.rest_used, self.rest_floor = ints(prefix + "rest", "used floor")

    def inv(self, n: Any = None, a: Any = None, v: Any = None) -> dict[str, Any]:
        """The invariant: rows are sane, totals are exact, everything held fits, every guarantee can be kept."""
        n, a, v = n or self.node, a or self.a, v or self.v
        return {
            "rows are sane": z3.And(account_ok(a), account_ok(v)),
            "others": z3.And(self.rest_used >= 0, self.rest_floor >= 0),
            "totals are exact": z3.And(
                n.used == a.used + v.used + self.rest_used,
                n.committed == unreclaimable(a) + unreclaimable(v) + self.rest_floor,
            ),
            "held blocks fit": n.used <= n.capacity,
            "guarantees fit": n.committed <= n.capacity,
        }

    def fits(self, before: rules.Account, after: rules.Account, freed: tuple[Any, Any] = (0, 0)) -> Any:
        """Blocks and guarantees still fit once `before` is `after` and (blocks, guarantee) `freed` went elsewhere."""
        n = self.node
        return z3.And(
            n.used - before.used + after.used - freed[0] <= n.capacity,
            n.committed - unreclaimable(before) + unreclaimable(after) - freed[1] <= n.capacity,
        )


# ------------------------------------------------------------------ rights
def scope(prefix: str) -> rights.Scope:
    return rights.Scope(*ints(prefix, "level party"))


def scope_ok(s: rights.Scope) -> Any:
    """A level of the chain: public and sealed (5) have no party, every other scope has one."""
    return z3.And(0 <= s.level, s.level <= 5, s.party >= 0, z3.Or(s.level == 0, s.level == 5) == (s.party == 0))


def any_scope(s: rights.Scope) -> Any:
    """Whatever a table may hold by mistake: any level with any party."""
    return z3.And(0 <= s.level, s.level <= 5, s.party >= 0)


def reader(prefix: str = "reader") -> rights.Reader:
    return rights.Reader(*ints(prefix, "tenant user session"))


def membership(prefix: str = "row") -> rights.Membership:
    return rights.Membership(z3.Bool(f"{prefix}.active"), *ints(prefix, "grant_epoch expiry_us"))


class Permission:
    """A ghost: what the operator last said about (tenant, group), kept by the proof and not by the code."""

    def __init__(self, prefix: str = "ghost") -> None:
        self.given, self.until = z3.Bool(f"{prefix}.given"), z3.Int(f"{prefix}.until")

    def agrees(self, row: rights.Membership) -> Any:
        return z3.And(row.active == self.given, z3.Implies(self.given, row.expiry_us == self.until))


def permitted(s: rights.Scope, r: rights.Reader, ghost: Permission, now: Any) -> Any:
    """The policy in one formula: public to all; a group's to members until the grant ends; the rest to its party."""
    return z3.Or(
        s.level == 0,
        z3.And(s.level == 1, s.party != 0, ghost.given, now < ghost.until),
        z3.And(s.level == 2, s.party != 0, s.party == r.tenant),
        z3.And(s.level == 3, s.party != 0, s.party == r.user),
        z3.And(s.level == 4, s.party != 0, s.party == r.session),
    )


class Rows:
    """A directory of symbolic scopes and memberships, by the position of the scope."""

    def __init__(self, count: int) -> None:
        self.scopes = tuple(scope(f"scope{i}") for i in range(count))
        self.rows = tuple(membership(f"row{i}") for i in range(count))
        self.ghosts = tuple(Permission(f"ghost{i}") for i in range(count))
        self.revision = 0
        self.tenant = reader().tenant

    def membership(self, tenant_id: Any, scope: rights.Scope) -> rights.Membership:
        """The row of the reader's tenant; asked for anybody else's, one that has nothing to do with it."""
        if not z3.eq(tenant_id, self.tenant):
            return membership("another tenant's row")
        return next(row for s, row in zip(self.scopes, self.rows, strict=True) if s is scope)

    def sane(self) -> dict[str, Any]:
        """Every scope is one, and every row says what the operator said."""
        return {
            "scopes": every(map(scope_ok, self.scopes)),
            "ghosts": every(g.agrees(row) for g, row in zip(self.ghosts, self.rows, strict=True)),
        }
