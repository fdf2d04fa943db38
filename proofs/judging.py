"""What passes the judge: exactly the readable blocks, for a chain of any length and any number of holders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from kvshare_research.core import judging, rights
from kvshare_research.core.nouns import Chain, Match, MissReason, Run

from .kit import Obligation, claim, theorem
from .spec import Permission, Rows, every, membership, permitted, reader, scope, scope_ok, some
from .symexec import paths


@theorem(
    "JUDGE",
    "what passes the judge is readable, block by block, and is part of what was matched; nothing readable is held "
    "back; a denial names its reason (one and two scopes, none to two holders, run as it ships; JUDGE-N has the rest)",
    judging.judge,
    judging.further,
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
    rows, r, now, block = Rows(scope_count), reader(), z3.Int("now"), z3.Int("block")
    held = [z3.Int(f"held{i}") for i in range(holder_count)]
    ends = [z3.Int(f"end{i}") for i in range(scope_count)]
    chain = Chain(hashes=b"", scope_ends=tuple(enumerate(ends)), block_tokens=1)
    match = Match(runs=tuple(Run(node=i, tier=0, block_count=h) for i, h in enumerate(held)))
    level_group = [s.level == rights.GROUP for s in rows.scopes]
    pre = {
        "scopes": every(map(scope_ok, rows.scopes)),
        "levels": every(s.level == level for s, level in zip(rows.scopes, levels, strict=False)),
        "ghosts": every(g.agrees(m) for g, m in zip(rows.ghosts, rows.rows, strict=True)),
        "rows are of groups": every(z3.Or(g, z3.Not(m.active)) for g, m in zip(level_group, rows.rows, strict=True)),
        "ends rise": every(a < b for a, b in zip([0, *ends], ends, strict=False)),
        "held": every(z3.And(h >= 1, h <= ends[-1]) for h in held),
    }
    may = [permitted(s, r, g, now) for s, g in zip(rows.scopes, rows.ghosts, strict=True)]
    inside = [z3.And(start <= block, block < end) for start, end in zip([0, *ends], ends, strict=False)]
    allowed = some(z3.And(here, *may[: k + 1]) for k, here in enumerate(inside))
    # the first scope that may not be read decides the reason: an active row that does not help has run out
    expired = some(z3.And(*may[:k], z3.Not(may[k]), rows.rows[k].active) for k in range(scope_count))
    for i, path in enumerate(paths(judging.judge, match, chain, r, rows, now, assume=list(pre.values()))):
        verdict, assume = path.value, {**pre, "path": path.condition, "block": block >= 0}
        usable = [next((run.block_count for run in verdict.runs if run.node == k), 0) for k in range(holder_count)]
        exact = [(block < u) == z3.And(block < h, allowed) for u, h in zip(usable, held, strict=True)]
        name = f"{scope_count} scopes, {holder_count} holders/{i}"
        yield claim(name, assume, every([*exact, *[run.block_count >= 1 for run in verdict.runs]]))
        lost = some(u < h for u, h in zip(usable, held, strict=True))
        yield claim(f"{name} denied", assume, lost == bool(verdict.denied))
        for reason, _ in verdict.denied:
            yield claim(f"{name} why", assume, expired == (reason == MissReason.DENIED_EXPIRED))


@theorem(
    "JUDGE-N",
    "the same for any finite chain and any number of holders, by induction over the scopes of the chain: each step of "
    "the judge keeps `readable` at the end of the longest start that may be read, and a run is cut exactly there",
    judging.further,
    judging.cut,
    rights.may_read,
)
def any_chain() -> Iterator[Obligation]:
    """`ok(k)`: what the policy says of the k-th run of one scope; `end(k)`: the block after it; both from 1."""
    ok, end = z3.Function("ok", z3.IntSort(), z3.BoolSort()), z3.Function("end", z3.IntSort(), z3.IntSort())
    k, j, n, block, held = z3.Ints("k j n block held")

    def readable_to(upto: Any) -> Any:
        return z3.ForAll(j, z3.Implies(z3.And(1 <= j, j <= upto), ok(j)))

    s, r, row, ghost, now = scope("scope"), reader(), membership(), Permission(), z3.Int("now")
    step = {
        "k runs done, all readable": z3.And(k >= 0, readable_to(k)),
        "scope": scope_ok(s),
        "ghost": ghost.agrees(row),
        "ok is the policy": ok(k + 1) == permitted(s, r, ghost, now),
    }
    # by name, so that a mutated rule is the one that runs
    for i, path in enumerate(
        paths(judging.further, end(k), end(k + 1), s, r, row, now, assume=[step["scope"], step["ghost"]])
    ):
        blocks, why_not = path.value
        if why_not is None:
            done = z3.And(blocks == end(k + 1), readable_to(k + 1))
        else:
            expired = z3.And(row.active, bool(why_not == MissReason.DENIED_EXPIRED))
            named = z3.Or(expired, z3.And(z3.Not(row.active), bool(why_not == MissReason.DENIED_SCOPE)))
            done = z3.And(blocks == end(k), z3.Not(ok(k + 1)), named)
        yield claim(f"one more run/{i}", {**step, "path": path.condition}, done)
    # Block `block` lies in run n; the judge stopped after k runs. Of "ends rise" only what two positions need.
    chain = {
        "starts at 0, ends rise": z3.And(z3.Implies(n <= k, end(n) <= end(k)), z3.Implies(k < n, end(k) <= end(n - 1))),
        "stopped after k runs": z3.And(0 <= k, readable_to(k), z3.Not(ok(k + 1))),
        "block of run n": z3.And(1 <= n, end(n - 1) <= block, block < end(n)),
    }
    passes = {**chain, "passes": block < end(k)}
    yield claim("what is before the cut is readable", {**passes, "some run": z3.And(1 <= j, j <= n)}, ok(j))
    yield claim("what is readable is before the cut", {**chain, "readable": readable_to(n)}, block < end(k))
    rise = {"each end rises": end(n) < end(n + 1), "up to n": end(k) <= end(n)}
    yield claim("ends rise over any distance", rise, end(k) < end(n + 1))
    at = z3.Int("readable")
    for i, path in enumerate(paths(judging.cut, Run(node=0, tier=0, block_count=held), at)):
        exact = (block < path.value.block_count) == z3.And(block < held, block < at)
        yield claim(f"cut/{i}", {"path": path.condition}, exact)
