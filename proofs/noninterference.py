"""2-safety by self-composition: two worlds that look alike to tenant B and differ arbitrarily otherwise.

And what cannot be hidden, as expected refutations with their witnesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import z3

from kvshare_research.core import account as rules
from kvshare_research.core import rights

from .kit import Obligation, claim, theorem
from .spec import Permission, World, membership, permitted, reader, same, scope, scope_ok
from .symexec import Path, lift, paths

STORED, REPLACED, REFUSED = "stored", "replaced one of its own", "refused"


def outcome(w: World, other_yields: Any) -> str:
    """What B sees of asking for one block, when the node tries the rules in order. `other_yields`: for some other
    account v, `admit_evicting(node, b, v, 1)` is allowed."""
    if rules.admit(w.node, w.a, 1).ok or other_yields:
        return STORED
    return REPLACED if rules.replace_own(w.node, w.a, 1).ok else REFUSED


def alike(*conditions: Callable[[World, Any], Any]) -> tuple[list[tuple[World, Any]], dict[str, Any]]:
    """Two worlds with the same account B (= `a`); capacity, the others and whether one yields differ freely."""
    worlds = [(World(f"w{i}."), z3.Bool(f"w{i}.other_yields")) for i in (1, 2)]
    assume: dict[str, Any] = {"B alike": same(worlds[0][0].a, worlds[1][0].a)}
    for w, yields in worlds:
        p = w.node.capacity.decl().name()[:3]
        assume |= {p + k: v for k, v in w.inv().items()}
        # theorem I6 as a fact: below its reservation B has room or somebody who yields
        need = z3.And(w.a.used < w.a.reserved, w.node.used >= w.node.capacity)
        assume[p + "I6"] = z3.Implies(need, yields)
        assume |= {f"{p}condition {k}": c(w, yields) for k, c in enumerate(conditions)}
    return worlds, assume


def outcome_pairs(
    worlds: list[tuple[World, Any]], assume: dict[str, Any]
) -> Iterator[tuple[str, Path, Path, dict[str, Any]]]:
    facts = list(assume.values())
    for i, p in enumerate(paths(outcome, *worlds[0], assume=facts)):
        for j, q in enumerate(paths(outcome, *worlds[1], assume=[*facts, p.condition])):
            yield f"{i},{j}", p, q, {**assume, "path 1": p.condition, "path 2": q.condition}


@theorem(
    "NI-A",
    "while B is below its reservation, whether its block is stored depends on B's own account only",
    rules.admit,
    rules.replace_own,
)
def ni_admission() -> Iterator[Obligation]:
    for name, p, q, assume in outcome_pairs(*alike(lambda w, _: w.a.used < w.a.reserved)):
        yield claim(name, assume, p.value == q.value)


@theorem(
    "NI-A2",
    "at a limit that equals its reservation B's outcome depends on its own account only: it replaces its own",
    rules.admit,
    rules.admit_evicting,
    rules.replace_own,
)
def ni_limit() -> Iterator[Obligation]:
    hard = (lambda w, _: z3.And(w.a.used == w.a.limit, w.a.limit == w.a.reserved), lambda _, yields: z3.Not(yields))
    for name, p, q, assume in outcome_pairs(*alike(*hard)):
        yield claim(name, assume, p.value == q.value)
    w = World()
    inv = {**w.inv(), "at its limit": w.a.used == w.a.limit}
    for i, path in enumerate(paths(rules.admit_evicting, w.node, w.a, w.v, 1, assume=list(inv.values()))):
        yield claim(f"at the limit nobody yields/{i}", {**inv, "path": path.condition}, not path.value.ok)


@theorem(
    "NI-E",
    "no operation of another account touches B while B is within its reservation or of a higher class",
    rules.admit_evicting,
)
def ni_eviction() -> Iterator[Obligation]:
    w, count = World(), z3.Int("count")  # a is the other account, v is B
    inv = {**w.inv(), "B is safe": z3.Or(w.v.used <= w.v.reserved, w.v.priority > w.a.priority)}
    for i, path in enumerate(paths(rules.admit_evicting, w.node, w.a, w.v, count, assume=list(inv.values()))):
        yield claim(f"{i}", {**inv, "path": path.condition}, same(path.value.victim, w.v))


@theorem(
    "NI-R",
    "hit or miss for B is the same in any two worlds that agree on the blocks B may read: what others keep to "
    "themselves, present or absent, does not show",
    rights.may_read,
    rights.open_read,
)
def ni_read() -> Iterator[Obligation]:
    r, now, generation, lease = reader("B"), z3.Int("now"), z3.Int("generation"), z3.Int("lease")
    sees, may, facts = [], [], {}
    for i in (1, 2):
        s, row, ghost, present = (
            scope(f"w{i}.scope"),
            membership(f"w{i}.row"),
            Permission(f"w{i}.ghost"),
            z3.Bool(f"w{i}.present"),
        )
        facts |= {f"{i} scope": scope_ok(s), f"{i} ghost": ghost.agrees(row)}

        def opened(s: Any = s, row: Any = row) -> bool:
            return rights.open_read(s, r, row, generation, now, lease) is not None

        sees.append(z3.And(present, lift(opened)))
        may.append(z3.And(present, permitted(s, r, ghost, now)))
    yield claim("hit or miss", {**facts, "alike to B": may[0] == may[1]}, sees[0] == sees[1])


@theorem("LEAK-1", "EXPECTED LEAK: above its reservation, B's admission tells of the others' demand", rules.admit)
def leak_burst() -> Iterator[Obligation]:
    bursts = lambda w, _: z3.And(w.a.used >= w.a.reserved, w.a.used < w.a.limit)  # noqa: E731
    worlds, assume = alike(bursts, lambda w, yields: z3.And(z3.Not(yields), w.node.capacity == 4))
    differ = [z3.And(p.condition, q.condition) for _, p, q, _ in outcome_pairs(worlds, assume) if p.value != q.value]
    yield claim("a burst is independent of the others", assume, z3.Not(z3.Or(*differ)), expect="refuted")


@theorem("LEAK-2", "EXPECTED LEAK: a hit on a group's block tells B that some member computed it", rights.open_read)
def leak_shared() -> Iterator[Obligation]:
    s, row, r, now = scope("scope"), membership(), reader("B"), z3.Int("now")
    present = z3.Bools("w1.present w2.present")
    hit = lift(lambda: rights.open_read(s, r, row, z3.Int("generation"), now, z3.Int("lease")) is not None)
    granted = {"granted": z3.And(scope_ok(s), s.level == rights.GROUP, row.active, now < row.expiry_us)}
    yield claim("B cannot tell", granted, z3.And(present[0], hit) == z3.And(present[1], hit), expect="refuted")
