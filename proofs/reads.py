"""Who may see what: no read without a right, nothing after a withdrawal. Any number of rows.

An operation on an arbitrary row is followed at *another* arbitrary row, so nothing depends on how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from kvshare_research.core import rights

from .kit import Obligation, claim, theorem
from .spec import Permission, any_scope, ints, membership, permitted, reader, scope, scope_ok
from .symexec import lift, paths


def ticket(prefix: str = "ticket") -> rights.Ticket:
    return rights.Ticket(*ints(prefix, "grant_epoch generation expiry_us"))


@theorem(
    "I1",
    "a read succeeds exactly when the operator's last word permits it, for any policy: none without right, none denied",
    rights.may_read,
    rights.open_read,
    rights.may_deliver,
    rights.grant,
    rights.revoke,
)
def i1() -> Iterator[Obligation]:
    s, r, row, ghost = scope("scope"), reader(), membership(), Permission()
    generation, now, lease = z3.Ints("generation now lease")
    pre = {"scope": any_scope(s), "ghost": ghost.agrees(row)}
    for i, path in enumerate(paths(rights.may_read, s, r, row, now, assume=list(pre.values()))):
        yield claim(f"may_read/{i}", {**pre, "path": path.condition}, permitted(s, r, ghost, now) == path.value)
    for i, path in enumerate(paths(rights.open_read, s, r, row, generation, now, lease, assume=list(pre.values()))):
        opened = path.value is not None
        exact = z3.And(path.value.expiry_us == now + lease, path.value.generation == generation) if opened else True
        yield claim(f"open/{i}", {**pre, "path": path.condition}, z3.And(permitted(s, r, ghost, now) == opened, exact))
    for i, path in enumerate(
        paths(rights.may_deliver, ticket(), s, r, row, generation, now, assume=list(pre.values()))
    ):
        if path.value:
            yield claim(f"deliver/{i}", {**pre, "path": path.condition}, permitted(s, r, ghost, now))
    yield from _ghost_stays_in_step(row, ghost)


def _ghost_stays_in_step(row: rights.Membership, ghost: Permission) -> Iterator[Obligation]:
    """An operation on the row of (tenant, group) leaves every row, itself and others, in agreement with its ghost."""
    t, g, t2, g2, until = z3.Ints("tenant group tenant2 group2 until")
    hit = z3.And(t == t2, g == g2)
    for name, new, given, end in (
        ("grant", rights.grant(row, until), True, until),
        ("revoke", rights.revoke(row), False, ghost.until),
    ):
        pick = [
            z3.If(hit, x, y)
            for x, y in ((new.active, row.active), (new.grant_epoch, row.grant_epoch), (new.expiry_us, row.expiry_us))
        ]
        then = Permission("ghost2")
        follows = z3.And(then.given == z3.If(hit, given, ghost.given), then.until == z3.If(hit, end, ghost.until))
        yield claim(
            f"{name} keeps the ghost",
            {"ghost": ghost.agrees(row), "then": follows},
            then.agrees(rights.Membership(*pick)),
        )


@theorem(
    "I7",
    "after a revocation, a reuse of the slot or expiry, nothing of a fetch opened earlier is delivered, also when the "
    "slot belongs to somebody else by then",
    rights.open_read,
    rights.may_deliver,
    rights.grant,
    rights.revoke,
)
def i7() -> Iterator[Obligation]:
    s, r, row, ghost, t = scope("scope"), reader(), membership(), Permission(), ticket()
    generation, later, now, lease, until = z3.Ints("generation generation2 now lease until")
    withdrawn = z3.Bool("withdrawn")  # ghost: something the ticket relied on has ended since it was opened

    def holds(t: Any, generation: Any, row: Any, withdrawn: Any) -> Any:
        past = z3.And(t.grant_epoch <= row.grant_epoch, t.generation <= generation)
        seen = z3.Or(t.grant_epoch < row.grant_epoch, t.generation < generation)
        # where the slot has a new owner, `row` is another row and its epochs mean nothing to the ticket
        return z3.Or(z3.And(past, z3.Implies(withdrawn, seen)), z3.And(withdrawn, t.generation < generation))

    for i, path in enumerate(paths(rights.open_read, s, r, row, generation, now, lease)):
        if path.value is not None:
            yield claim(f"opened/{i}", {"path": path.condition}, holds(path.value, generation, row, z3.BoolVal(False)))
    pre = {"inv": holds(t, generation, row, withdrawn)}
    reused = {**pre, "a slot's generation only rises": later > generation}
    yield claim("grant", pre, holds(t, generation, rights.grant(row, until), withdrawn))
    yield claim("revoke", pre, holds(t, generation, rights.revoke(row), z3.BoolVal(True)))
    yield claim("slot reused", reused, holds(t, later, row, z3.BoolVal(True)))
    yield claim("slot reused by another owner", reused, holds(t, later, membership("row2"), z3.BoolVal(True)))
    facts = {**pre, "scope": scope_ok(s), "ghost": ghost.agrees(row)}
    for i, path in enumerate(paths(rights.may_deliver, t, s, r, row, generation, now, assume=list(facts.values()))):
        if path.value:
            safe = z3.And(z3.Not(withdrawn), permitted(s, r, ghost, now), now < t.expiry_us)
            yield claim(f"delivered/{i}", {**facts, "path": path.condition}, safe)


@theorem(
    "I7D",
    "however late messages are: of a fetch opened before a revocation nothing is accepted once its reader knows, and a "
    "holder that knows opens none for a reader that does not; unheard of, the window ends with the lease",
    rights.open_read,
    rights.may_deliver,
    rights.grant,
    rights.revoke,
)
def i7d() -> Iterator[Obligation]:
    """Holder and reader have each applied the directory up to some revision; between them lies the revocation."""
    epoch = z3.Function("grant_epoch", z3.IntSort(), z3.IntSort())  # of one (tenant, group), by revision
    active = z3.Function("active", z3.IntSort(), z3.BoolSort())
    expiry = z3.Function("expiry_us", z3.IntSort(), z3.IntSort())
    n, m, holder, reader_at, revoked = z3.Ints("n m holder_revision reader_revision revoked")

    def row(at: Any) -> rights.Membership:
        return rights.Membership(active(at), epoch(at), expiry(at))

    # Epochs never fall from one revision to a later one: each is left alone, granted or revoked.
    until = z3.Int("until")
    for name, new in (
        ("left alone", row(n)),
        ("grant", rights.grant(row(n), until)),
        ("revoke", rights.revoke(row(n))),
    ):
        step = {"hypothesis": epoch(m) <= epoch(n), "step": epoch(n + 1) == new.grant_epoch}
        yield claim(f"epochs rise: {name}", step, epoch(m) <= epoch(n + 1))
    s, r, generation, opened, now, lease = scope("scope"), reader(), *z3.Ints("generation opened now lease")
    pre = {
        "a group's block": z3.And(s.level == rights.GROUP, s.party > 0),
        "revoked": epoch(revoked) == rights.revoke(row(revoked - 1)).grant_epoch,
    }

    def fetch() -> bool:
        given = rights.open_read(s, r, row(holder), generation, opened, lease)
        return given is not None and rights.may_deliver(given, s, r, row(reader_at), generation, now)

    reader_knows = {**pre, "order": z3.And(holder < revoked, revoked <= reader_at)}
    reader_knows["epochs rise"] = z3.And(epoch(holder) <= epoch(revoked - 1), epoch(revoked) <= epoch(reader_at))
    holder_knows = {**pre, "order": z3.And(reader_at < revoked, revoked <= holder)}
    holder_knows["epochs rise"] = z3.And(epoch(reader_at) <= epoch(revoked - 1), epoch(revoked) <= epoch(holder))
    for name, assume in (("the reader knows", reader_knows), ("only the holder knows", holder_knows)):
        for i, path in enumerate(paths(fetch, assume=list(assume.values()))):
            yield claim(f"{name}/{i}", {**assume, "path": path.condition}, not path.value)
    for i, path in enumerate(paths(fetch, assume=list(pre.values()))):
        if path.value:
            yield claim(
                f"nobody knows: the window is a lease/{i}", {**pre, "path": path.condition}, now < opened + lease
            )


@theorem(
    "CUT-OFF",
    "a node cut off before a revocation, however long: whoever knows of it refuses what the node holds and asks for, "
    "at any time; but two nodes cut off together go on serving each other what was dispatched to them before",
    rights.open_read,
    rights.may_deliver,
    rights.revoke,
)
def cut_off() -> Iterator[Obligation]:
    """The node's row stays as it was at the cut; on the other side of the cut the revocation has been applied, and
    maybe a later grant. No time is bounded: the cut may last for ever."""
    s, r, before, after, later = scope("scope"), reader(), membership("before"), membership("after"), z3.Int("later")
    generation, opened, now, lease, revoked_at = z3.Ints("generation opened now lease revoked_at")
    gone = rights.revoke(before)
    pre = {
        "a group's block": z3.And(s.level == rights.GROUP, s.party > 0),
        "epochs only rise after the revocation": z3.And(later >= 0, after.grant_epoch == gone.grant_epoch + later),
        "times": z3.And(revoked_at < opened, opened <= now, now < opened + lease),
    }

    def fetch(at_holder: rights.Membership, at_reader: rights.Membership) -> bool:
        given = rights.open_read(s, r, at_holder, generation, opened, lease)
        return given is not None and rights.may_deliver(given, s, r, at_reader, generation, now)

    for name, holder, asker in (("the holder is cut off", before, after), ("the reader is cut off", after, before)):
        for i, path in enumerate(paths(fetch, holder, asker, assume=list(pre.values()))):
            yield claim(f"{name}/{i}", {**pre, "path": path.condition}, not path.value)
    never = z3.Not(lift(fetch, before, before, assume=list(pre.values())))
    yield claim("both are cut off: nothing is fetched after the revocation", pre, never, expect="refuted")
