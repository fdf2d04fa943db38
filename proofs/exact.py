"""The rules refuse only what they must, and do what they say. Refusing everything would satisfy safety alone."""

from __future__ import annotations

from collections.abc import Iterator

import z3

from kvshare_research.core import account as rules
from kvshare_research.core import rights

from .kit import Obligation, claim, theorem
from .quota import ALL
from .spec import Permission, World, ints, membership, moved, permitted, reader, same, scope, scope_ok, unreclaimable
from .symexec import paths


@theorem(
    "LIVE", "an operation succeeds whenever the policy allows it, and then changes exactly the rows it names", *ALL
)
def live() -> Iterator[Obligation]:
    w, n = World(), z3.Int("n")
    r, limit, p = ints("new", "reserved limit priority")
    up, down, pinned, freed = moved(w.a, used=n), moved(w.a, used=-n), moved(w.a, pinned=n), moved(w.a, pinned=-n)
    yields = moved(w.v, used=-n)
    quota = rules.Account(w.a.used, w.a.pinned, r, limit, p)
    gone = rules.Account(*[z3.IntVal(0)] * 5)
    grows = w.a.used + n <= w.a.limit
    leaves = z3.And(yields.used >= w.v.reserved, yields.used >= w.v.pinned, w.v.priority <= w.a.priority)
    spare = w.a.used - w.a.pinned
    from_v = (n, unreclaimable(w.v) - unreclaimable(yields))
    cases = [
        (rules.admit, (w.node, w.a, n), z3.And(n >= 0, grows, w.fits(w.a, up)), up),
        (rules.admit_evicting, (w.node, w.a, w.v, n), z3.And(n >= 0, leaves, grows, w.fits(w.a, up, from_v)), up),
        (rules.replace_own, (w.node, w.a, n), z3.And(n >= 0, n <= spare), w.a),
        (rules.release, (w.node, w.a, n), z3.And(n >= 0, n <= spare), down),
        (rules.pin, (w.node, w.a, n), z3.And(n >= 0, n <= spare, w.fits(w.a, pinned)), pinned),
        (rules.unpin, (w.node, w.a, n), z3.And(n >= 0, n <= w.a.pinned), freed),
        (
            rules.configure,
            (w.node, w.a, r, limit, p),
            z3.And(0 <= r, r <= limit, w.a.used <= limit, p >= 0, w.fits(w.a, quota)),
            quota,
        ),
        (rules.remove, (w.node, w.a), w.a.pinned == 0, gone),
    ]
    inv = w.inv()
    for i, path in enumerate(paths(rules.may_evict, w.v, w.a, n, assume=list(inv.values()))):
        yield claim(f"may_evict/{i}", {**inv, "path": path.condition}, z3.And(n >= 0, leaves) == path.value)
    for function, args, allowed, becomes in cases:
        # by name, so that a mutated rule is the one that runs
        for i, path in enumerate(paths(getattr(rules, function.__name__), *args, assume=list(inv.values()))):
            s = path.value
            effect = same(s.account, becomes if s.ok else w.a)
            if s.ok and function.__name__ == "admit_evicting":
                effect = z3.And(effect, same(s.victim, yields))
            yield claim(
                f"{function.__name__}/{i}", {**inv, "path": path.condition}, z3.And(z3.BoolVal(s.ok) == allowed, effect)
            )


@theorem(
    "PLAN",
    "an account always gets a block while it is within its limit and somebody (itself included) has one to give; at "
    "its limit it turns to its own; over quota the answer is the same however full the node is",
    rules.admit,
    rules.admit_evicting,
    rules.replace_own,
)
def plan() -> Iterator[Obligation]:
    w = World()
    inv = {**w.inv(), "one of its own can go": w.a.used > w.a.pinned}
    for i, path in enumerate(paths(rules.replace_own, w.node, w.a, 1, assume=list(inv.values()))):
        yield claim(f"its own always serves/{i}", {**inv, "path": path.condition}, path.value.ok)
    full = {**w.inv(), "at its limit": w.a.used == w.a.limit}

    def three() -> tuple[bool, bool, bool]:
        one = rules.admit(w.node, w.a, 1).ok
        return one, rules.admit_evicting(w.node, w.a, w.v, 1).ok, rules.replace_own(w.node, w.a, 1).ok

    for i, path in enumerate(paths(three, assume=list(full.values()))):
        grows, takes, replaces = path.value
        own_only = z3.And(z3.BoolVal(not grows and not takes), z3.BoolVal(replaces) == (w.a.used > w.a.pinned))
        yield claim(
            f"at its limit: its own or nothing, at any fill level/{i}", {**full, "path": path.condition}, own_only
        )
    roomy = {**w.inv(), "class 0 below its limit": z3.And(w.a.priority == 0, w.a.used < w.a.limit)}
    roomy["room"] = w.node.used < w.node.capacity
    for i, path in enumerate(paths(rules.admit, w.node, w.a, 1, assume=list(roomy.values()))):
        yield claim(f"class 0 may use every free block/{i}", {**roomy, "path": path.condition}, path.value.ok)


@theorem(
    "READ-LIVE",
    "a permitted, undisturbed fetch is opened and delivered until its ticket runs out",
    rights.may_read,
    rights.open_read,
    rights.may_deliver,
)
def read_live() -> Iterator[Obligation]:
    s, r, row, ghost = scope("scope"), reader(), membership(), Permission()
    generation, now, later, lease = z3.Ints("generation now later lease")
    pre = {
        "scope": scope_ok(s),
        "ghost": ghost.agrees(row),
        "permitted": z3.And(permitted(s, r, ghost, now), permitted(s, r, ghost, later)),
        "within the ticket": z3.And(now <= later, later < now + lease),
    }

    def fetch() -> bool:
        ticket = rights.open_read(s, r, row, generation, now, lease)
        return ticket is not None and rights.may_deliver(ticket, s, r, row, generation, later)

    for i, path in enumerate(paths(fetch, assume=list(pre.values()))):
        yield claim(f"delivered/{i}", {**pre, "path": path.condition}, path.value)
