"""The same steps with accounts as arrays over an uninterpreted sort of tenants: no bound, no rest. A cross-check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from kvshare_research.core import account as rules

from .kit import Obligation, claim, theorem
from .quota import ALL, operations
from .spec import World, account_ok
from .symexec import paths

Tenant = z3.DeclareSort("Tenant")
FIELDS = ("used", "pinned", "reserved", "limit", "priority")
Arrays = dict[str, Any]


def row(arrays: Arrays, tenant: Any) -> rules.Account:
    return rules.Account(*[arrays[f][tenant] for f in FIELDS])


def store(arrays: Arrays, tenant: Any, account: rules.Account) -> Arrays:
    return {f: z3.Store(arrays[f], tenant, getattr(account, f)) for f in FIELDS}


@theorem(
    "UNB",
    "for all tenants of any set: rows stay sane through every operation, and whoever is within its reservation and "
    "does not act itself keeps every block",
    *ALL,
)
def unb() -> Iterator[Obligation]:
    arrays = {f: z3.Array(f"accounts.{f}", Tenant, z3.IntSort()) for f in FIELDS}
    a, v, t, k = (z3.Const(name, Tenant) for name in ("a", "v", "t", "k"))
    world = World()
    world.a, world.v = row(arrays, a), row(arrays, v)
    everybody = z3.ForAll(t, account_ok(row(arrays, t)))
    for name, function, args in operations(world, z3.Int("count")):
        touched = [a != v, account_ok(world.a), account_ok(world.v)]
        for i, path in enumerate(paths(function, *args, assume=touched)):
            new = store(arrays, a, path.value.account)
            if path.value.victim is not None:
                new = store(new, v, path.value.victim)
            pre = {"all rows are sane": everybody, "path": path.condition, "distinct": a != v}
            yield claim(f"{name}/{i} rows", pre, account_ok(row(new, k)))
            within = {**pre, "another": k != a, "within": arrays["used"][k] <= arrays["reserved"][k]}
            yield claim(f"{name}/{i} keeps", within, new["used"][k] == arrays["used"][k])
