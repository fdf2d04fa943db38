"""The index protocol: whatever the network loses, repeats or reorders, a reader's view is the replay of a prefix of one
incarnation's log, never goes back, and one heartbeat and one snapshot bring it up to date."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from kvshare_research.core import protocol

from .kit import Obligation, claim, theorem
from .symexec import paths

Held, Entry = z3.DeclareSort("Held"), z3.DeclareSort("Entry")
replay = z3.Function("replay", z3.IntSort(), z3.IntSort(), Held)  # (incarnation, n): state after n entries of its log
entry = z3.Function("log", z3.IntSort(), z3.IntSort(), Entry)
apply = z3.Function("apply", Held, Entry, Held)
EMPTY, HELD = z3.Const("empty", Held), z3.Const("held", Held)
INCARNATION, SEQ, KIND, THEIRS, AT = z3.Ints("incarnation seq kind message_incarnation message_seq")


def state() -> dict[str, Any]:
    return {
        "view": HELD == replay(INCARNATION, SEQ),
        "numbers": z3.And(INCARNATION >= 0, SEQ >= 0, AT >= 0, THEIRS >= 0, 0 <= KIND, KIND <= 2),
        "replay of nothing": z3.And(replay(THEIRS, 0) == EMPTY, replay(INCARNATION, 0) == EMPTY),
        "replay of one more": z3.Implies(
            AT >= 1, replay(THEIRS, AT) == apply(replay(THEIRS, AT - 1), entry(THEIRS, AT))
        ),
    }


def view_after(d: protocol.Decision) -> Any:
    """What the reader believes once it has done as decided; `d.what` is concrete on every path."""
    start = z3.If(d.reset, EMPTY, HELD)
    if d.what == protocol.APPLY:
        return apply(start, entry(THEIRS, AT))
    return replay(THEIRS, AT) if d.what == protocol.INSTALL else start


@theorem(
    "IDX", "a view is always the replay of a prefix of one incarnation's log, and never goes back", protocol.decide
)
def idx() -> Iterator[Obligation]:
    pre = state()
    arguments = (INCARNATION, SEQ, KIND, THEIRS, AT)
    for i, path in enumerate(paths(protocol.decide, *arguments, assume=list(pre.values()))):
        d, assume = path.value, {**pre, "path": path.condition}
        yield claim(f"replay/{i}", assume, view_after(d) == replay(d.incarnation, d.seq))
        forward = z3.Or(d.incarnation > INCARNATION, z3.And(d.incarnation == INCARNATION, d.seq >= SEQ))
        yield claim(f"never back/{i}", assume, forward)


@theorem(
    "IDX-CONV",
    "a heartbeat of the present state finds the view up to date or asks for a snapshot, which brings it up to date",
    protocol.decide,
)
def converges() -> Iterator[Obligation]:
    past = z3.Or(INCARNATION < THEIRS, z3.And(INCARNATION == THEIRS, SEQ <= AT))
    pre = {**state(), "view is of the past": past, "beat": KIND == protocol.HEARTBEAT}
    arguments = (INCARNATION, SEQ, KIND, THEIRS, AT)
    for i, path in enumerate(paths(protocol.decide, *arguments, assume=list(pre.values()))):
        d, assume = path.value, {**pre, "path": path.condition}
        if d.what == protocol.ASK:
            then = (d.incarnation, d.seq, protocol.SNAPSHOT, THEIRS, AT)
            for j, second in enumerate(paths(protocol.decide, *then, assume=list(assume.values()))):
                got = second.value
                current = z3.And(got.incarnation == THEIRS, got.seq == AT)
                yield claim(f"snapshot/{i}.{j}", {**assume, "then": second.condition}, current)
        else:
            yield claim(f"up to date/{i}", assume, z3.And(d.incarnation == THEIRS, d.seq == AT))


@theorem(
    "IDX-LIVE",
    "the next entry is applied, a newer snapshot installed, a gap or a lost last entry noticed",
    protocol.decide,
)
def live() -> Iterator[Obligation]:
    pre = {**state(), "same incarnation": INCARNATION == THEIRS}
    news = AT > SEQ
    for i, path in enumerate(paths(protocol.decide, INCARNATION, SEQ, KIND, THEIRS, AT, assume=list(pre.values()))):
        expected = z3.If(
            z3.Not(news),
            protocol.IGNORE,
            z3.If(
                KIND == protocol.EVENT,
                z3.If(AT == SEQ + 1, protocol.APPLY, protocol.HOLD),
                z3.If(KIND == protocol.SNAPSHOT, protocol.INSTALL, protocol.ASK),
            ),
        )
        yield claim(
            f"{i}", {**pre, "path": path.condition}, z3.And(expected == path.value.what, z3.Not(path.value.reset))
        )
