"""Who may keep what: invariants, floors, classes, pins, termination, and what cannot be had together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import z3

from kvshare_research.core import account as rules

from .kit import Obligation, claim, theorem
from .spec import World, account, account_ok, ints, node, same, unreclaimable
from .symexec import Path, paths

Operation = tuple[str, Callable[..., Any], tuple[Any, ...]]
ALL = (
    rules.admit,
    rules.admit_evicting,
    rules.replace_own,
    rules.release,
    rules.pin,
    rules.unpin,
    rules.configure,
    rules.remove,
)


def operations(w: World, count: Any) -> list[Operation]:
    """Every way in which rows can change, for any `count`, negative ones included."""
    r, limit, p = ints("new", "reserved limit priority")
    return [
        ("admit", rules.admit, (w.node, w.a, count)),
        ("admit_evicting", rules.admit_evicting, (w.node, w.a, w.v, count)),
        ("replace_own", rules.replace_own, (w.node, w.a, count)),
        ("release", rules.release, (w.node, w.a, count)),
        ("pin", rules.pin, (w.node, w.a, count)),
        ("unpin", rules.unpin, (w.node, w.a, count)),
        ("configure", rules.configure, (w.node, w.a, r, limit, p)),
        ("remove", rules.remove, (w.node, w.a)),
    ]


def each_path(w: World) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """(operation and path number, path, assumptions) of every operation from any state that satisfies the invariant."""
    inv = w.inv()
    for name, function, args in operations(w, z3.Int("count")):
        for i, path in enumerate(paths(function, *args, assume=list(inv.values()))):
            yield f"{name}/{i}", path, {**inv, "path": path.condition}


def after(w: World, step: rules.Step) -> dict[str, Any]:
    return w.inv(step.node, step.account, step.victim or w.v)


@theorem(
    "INV", "after every operation totals are exact and every guarantee still fits; a refusal changes nothing", *ALL
)
def inv() -> Iterator[Obligation]:
    w = World()
    for name, path, assume in each_path(w):
        step = path.value
        if step.ok:
            post = after(w, step)
            yield claim(name, assume, z3.And(post["totals are exact"], post["guarantees fit"], post["others"]))
        else:
            unchanged = z3.And(same(step.node, w.node), same(step.account, w.a), same(step.victim or w.v, w.v))
            yield claim(f"{name} refused", assume, unchanged)


@theorem("I2", "the blocks in use never exceed the capacity of the node", *ALL)
def i2() -> Iterator[Obligation]:
    w = World()
    for name, path, assume in each_path(w):
        yield claim(name, assume, after(w, path.value)["held blocks fit"])


@theorem("I3", "no account is brought below its reservation, or loses anything below it, by another's operation", *ALL)
def i3() -> Iterator[Obligation]:
    w = World()
    for name, path, assume in each_path(w):
        if path.value.victim is not None:
            left = path.value.victim.used
            yield claim(name, assume, z3.Or(left == w.v.used, left >= w.v.reserved))


@theorem("I4", "no block goes for an account of a lower class", *ALL)
def i4() -> Iterator[Obligation]:
    w = World()
    for name, path, assume in each_path(w):
        if path.value.victim is not None:
            lost = path.value.victim.used < w.v.used
            yield claim(name, assume, z3.Implies(lost, w.v.priority <= w.a.priority))


@theorem("I5", "0 <= pinned <= used <= limit and reserved <= limit hold for every account, always", *ALL)
def i5() -> Iterator[Obligation]:
    w = World()
    for name, path, assume in each_path(w):
        yield claim(name, assume, after(w, path.value)["rows are sane"])


@theorem("I6", "an account below its reservation gets a block: at once if there is room, else from somebody", *ALL[:2])
def i6() -> Iterator[Obligation]:
    w, count = World(), z3.Int("count")
    inv = {**w.inv(), "within": z3.And(count >= 0, w.a.used + count <= w.a.reserved)}
    facts = {**inv, "room": w.node.used + count <= w.node.capacity}
    for i, path in enumerate(paths(rules.admit, w.node, w.a, count, assume=list(facts.values()))):
        yield claim(f"room for any count/{i}", {**facts, "path": path.condition}, path.value.ok)
    below = {**w.inv(), "below": w.a.used < w.a.reserved}
    for i, path in enumerate(paths(rules.admit_evicting, w.node, w.a, w.v, 1, assume=list(below.values()))):
        stuck = w.v.used <= unreclaimable(w.v)
        yield claim(
            f"who has more than its guarantee yields/{i}",
            {**below, "path": path.condition},
            z3.Or(path.value.ok, stuck),
        )
    # If nobody yields, all others together hold no more than their guarantees (SUM L1), so the node cannot be full.
    n, a = node(), account("a")
    others_used, others_floor = ints("others", "used floor")
    totals = {
        "row": account_ok(a),
        "used": n.used == a.used + others_used,
        "committed": n.committed == unreclaimable(a) + others_floor,
        "guarantees fit": n.committed <= n.capacity,
        "nobody else yields": others_used <= others_floor,
    }
    yield claim("pigeonhole", {**totals, "below": a.used < a.reserved}, n.used < n.capacity)


@theorem(
    "I9",
    "making room terminates: an eviction admits what it was made for, so n blocks cost at most n evictions",
    *ALL[:4],
)
def i9() -> Iterator[Obligation]:
    w, count = World(), z3.Int("count")
    inv = w.inv()
    takes = [
        ("admit_evicting", rules.admit_evicting, (w.node, w.a, w.v, count)),
        ("replace_own", rules.replace_own, (w.node, w.a, count)),
    ]
    for name, function, args in takes:
        for i, path in enumerate(paths(function, *args, assume=list(inv.values()))):
            s = path.value
            if s.ok:
                victim = w.a if s.victim is None else w.v
                gone = victim.used - (s.victim or w.a).used if s.victim is not None else 0
                grown = s.account.used - w.a.used
                yield claim(
                    f"{name}/{i}", {**inv, "path": path.condition}, z3.And(s.node.used == w.node.used, grown == gone)
                )
    for i, path in enumerate(paths(rules.release, w.node, w.a, count, assume=list(inv.values()))):
        if path.value.ok:
            freed = w.node.used - path.value.node.used
            yield claim(
                f"release/{i}", {**inv, "path": path.condition}, z3.And(freed == count, path.value.node.used >= 0)
            )


@theorem(
    "I10", "a pinned block is never evicted: what is left covers the pins, and only pin and unpin change them", *ALL
)
def i10() -> Iterator[Obligation]:
    w = World()
    for name, path, assume in each_path(w):
        s, v = path.value, path.value.victim or w.v
        keeps = z3.And(s.account.used >= s.account.pinned, v.used >= v.pinned, v.pinned == w.v.pinned)
        if not name.startswith(("pin", "unpin")):
            keeps = z3.And(keeps, s.account.pinned == w.a.pinned)
        yield claim(name, assume, keeps)


COUNTED = (rules.admit, rules.admit_evicting, rules.release, rules.pin, rules.unpin)


@theorem(
    "COUNT", "an operation on n blocks is n operations on one block: equally allowed, with the same result", *COUNTED
)
def count_() -> Iterator[Obligation]:
    """`replace_own` is left out on purpose: step by step it may replace one block again and again."""
    w, n = World(), z3.Int("n")
    inv = {**w.inv(), "n": n >= 0}
    counted = {f.__name__ for f in COUNTED}
    for name, function, args in operations(w, n):
        if name not in counted:
            continue
        two = name == "admit_evicting"
        victim = args[2:3] if two else ()

        def both(function: Callable[..., Any] = function, victim: tuple[Any, ...] = victim) -> tuple[Any, Any, Any]:
            nothing = function(w.node, w.a, *victim, 0)
            some = function(w.node, w.a, *victim, n)
            if some.ok:
                some = function(some.node, some.account, *([some.victim] if victim else []), 1)
            return nothing, some, function(w.node, w.a, *victim, n + 1)

        for i, path in enumerate(paths(both, assume=list(inv.values()))):
            nothing, stepwise, at_once = path.value
            assume = {**inv, "path": path.condition}
            rows = [(stepwise.node, at_once.node), (stepwise.account, at_once.account)]
            rows += [(stepwise.victim, at_once.victim)] if two else []
            equal = z3.And(*[same(x, y) for x, y in rows]) if at_once.ok else z3.BoolVal(True)
            yield claim(f"{name}/{i} n+1", assume, z3.And(z3.BoolVal(stepwise.ok == at_once.ok), equal))
            yield claim(f"{name}/{i} 0", assume, z3.And(same(nothing.node, w.node), same(nothing.account, w.a)))


@theorem("SUM", "the three facts about sums that let two named accounts stand for any number, by induction")
def sums() -> Iterator[Obligation]:
    s, s2, f, g = (z3.Function(x, z3.IntSort(), z3.IntSort()) for x in ("S", "S2", "f", "g"))
    n, k, d, i1, i2 = z3.Ints("n k d i1 i2")
    rec = {
        "S(0)": s(0) == 0,
        "S(n+1)": s(n + 1) == s(n) + f(n),
        "S2(0)": s2(0) == 0,
        "S2(n+1)": s2(n + 1) == s2(n) + g(n),
        "n": n >= 0,
    }
    # L1: terms that are <= give sums that are <=
    yield claim("L1 base", rec, s(0) <= s2(0))
    yield claim("L1 step", {**rec, "terms": f(n) <= g(n), "hypothesis": s(n) <= s2(n)}, s(n + 1) <= s2(n + 1))

    # L2: changing term k by d changes the sum by d
    def moved_by(m: Any) -> Any:
        return s2(m) == s(m) + z3.If(z3.And(0 <= k, k < m), d, 0)

    frame = g(n) == f(n) + z3.If(n == k, d, 0)
    yield claim("L2 base", rec, moved_by(0))
    yield claim("L2 step", {**rec, "frame": frame, "hypothesis": moved_by(n)}, moved_by(n + 1))

    # L3: terms that are >= 0 bound any two of them by the sum, so the rest is >= 0
    def bounded(m: Any) -> Any:
        two = [z3.If(z3.And(0 <= i, i < m), f(i), 0) for i in (i1, i2)]
        return z3.And(s(m) >= 0, s(m) >= two[0] + two[1])

    terms = {"terms": z3.And(f(n) >= 0, f(i1) >= 0, f(i2) >= 0), "distinct": i1 != i2}
    yield claim("L3 base", {**rec, **terms}, bounded(0))
    yield claim("L3 step", {**rec, **terms, "hypothesis": bounded(n)}, bounded(n + 1))


@theorem(
    "CLASH",
    "EXPECTED TO FAIL: lending idle reservations to every class, 'reservations are attainable' (I6) and 'a higher "
    "class is never evicted' (I4) exclude each other; hence `floor_of`",
)
def clash() -> Iterator[Obligation]:
    w = World()
    naive = {
        "rows": z3.And(account_ok(w.a), account_ok(w.v)),
        "only two accounts": z3.And(w.rest_used == 0, w.rest_floor == 0, w.node.used == w.a.used + w.v.used),
        "reservations fit": w.a.reserved + w.v.reserved <= w.node.capacity,
        "the node is full": w.node.used == w.node.capacity,
        "a is below its reservation": w.a.used < w.a.reserved,
        "nothing is pinned": z3.And(w.a.pinned == 0, w.v.pinned == 0),
    }
    victim = z3.And(w.v.used > w.v.reserved, w.v.priority <= w.a.priority)
    yield claim("somebody of no higher class can yield", naive, victim, expect="refuted")


@theorem(
    "XFER",
    "a transfer (admit and pin at the reader, pin at the holder) aborted anywhere restores both ends exactly; done, it "
    "leaves its blocks at the reader and no pin; neither end needs the other's word for its invariant",
    rules.admit,
    rules.pin,
    rules.unpin,
    rules.release,
)
def xfer() -> Iterator[Obligation]:
    src, dst, n = World("src."), World("dst."), z3.Int("n")
    inv = {f"holder: {k}": v for k, v in src.inv().items()} | {f"reader: {k}": v for k, v in dst.inv().items()}
    inv["n"] = n >= 1

    def transfer(succeeds: bool) -> tuple[bool, rules.Step, rules.Step]:
        """The rules in the order in which reader, holder, holder and reader apply them."""
        room = rules.admit(dst.node, dst.a, n)
        held = rules.pin(room.node, room.account, n) if room.ok else room
        sent = rules.pin(src.node, src.a, n) if held.ok else rules.Step(False, src.node, src.a)
        holder = rules.unpin(sent.node, sent.account, n) if sent.ok else sent
        ends = rules.unpin(held.node, held.account, n) if held.ok else held
        done = succeeds and sent.ok
        if room.ok and not done:
            ends = rules.release(ends.node, ends.account, n)
        return done, holder, ends

    for succeeds in (True, False):
        for i, path in enumerate(paths(transfer, succeeds, assume=list(inv.values()))):
            done, holder, reader = path.value
            assume = {**inv, "path": path.condition}
            untouched = z3.And(same(holder.node, src.node), same(holder.account, src.a))
            if done:
                grown = z3.And(reader.account.used == dst.a.used + n, reader.account.pinned == dst.a.pinned)
                yield claim(
                    f"done/{i}", assume, z3.And(untouched, grown, *dst.inv(reader.node, reader.account).values())
                )
            else:
                restored = z3.And(same(reader.node, dst.node), same(reader.account, dst.a))
                yield claim(f"aborted/{succeeds}/{i}", assume, z3.And(untouched, restored))
