"""Splitting a prefix over sources, and over a source and the engine: the integer formulas end no later than others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import z3

from kvshare_research.core import costing, splitting

from .cost import coefficients, more
from .kit import Obligation, claim, theorem
from .symexec import lift, paths


def source(prefix: str) -> tuple[Any, Any, Any]:
    """(setup, time per block, blocks it carries) of a source, in picoseconds."""
    return z3.Int(f"{prefix}.setup"), z3.Int(f"{prefix}.per_block"), z3.Int(f"{prefix}.count")


def source_ok(s: tuple[Any, Any, Any]) -> Any:
    return z3.And(s[0] >= 0, s[1] >= 1, s[2] >= 0)


def ends(function: Callable[..., Any], s: tuple[Any, Any, Any]) -> Any:
    return lift(function, *s, assume=[source_ok(s)])


def levelled(i: tuple[Any, Any, Any], j: tuple[Any, Any, Any]) -> Any:
    """No block of i would arrive earlier at j: what the split keeps true for every pair of sources."""
    return ends(splitting.finish_ps, i) <= ends(splitting.next_finish_ps, j)


@theorem(
    "C4",
    "the split in whole blocks is optimal for any number of sources: every other split ends no earlier",
    splitting.finish_ps,
    splitting.next_finish_ps,
    splitting.delivered_blocks,
)
def c4() -> Iterator[Obligation]:
    i, j = source("i"), source("j")
    pre = {"sources": z3.And(source_ok(i), source_ok(j))}
    # Under one level, both what is delivered and what would come next obey it: where bisection stops.
    level = z3.Int("level")
    for k, path in enumerate(paths(splitting.delivered_blocks, i[0], i[1], level, assume=[source_ok(i)])):
        under = (i[0], i[1], path.value)
        fits = z3.And(
            splitting.next_finish_ps(*under) > level, z3.Or(path.value == 0, i[0] + path.value * i[1] <= level)
        )
        assume = {**pre, "path": path.condition, "level": level >= 0}
        yield claim(f"a level is respected/{k}", assume, z3.And(fits, path.value >= 0))
    low = {
        **pre,
        "i fits": ends(splitting.finish_ps, i) <= level,
        "j is next": ends(splitting.next_finish_ps, j) > level,
    }
    yield claim("under one level all pairs are levelled", low, levelled(i, j))
    # One more block to whoever would finish first keeps all pairs levelled (f is that source).
    f = source("first")
    given = (f[0], f[1], f[2] + 1)
    first = {
        **pre,
        "f": source_ok(f),
        "levelled": z3.And(levelled(i, j), levelled(i, f), levelled(f, j)),
        "f is first": ends(splitting.next_finish_ps, f) <= ends(splitting.next_finish_ps, j),
    }
    yield claim("others beside f", first, levelled(i, given))
    yield claim("f beside others", first, levelled(given, j))
    yield claim("f beside itself", {"f": source_ok(f)}, levelled(given, given))
    # Any other split of the same total gives some j a block more (SUM L1), which ends no earlier than our last.
    beyond, not_less = more(j[2] + 1, "extra")
    other = (j[0], j[1], beyond)
    rival = {**pre, "levelled": levelled(i, j), "j carries more": not_less}
    later = lift(splitting.finish_ps, *other, assume=list(rival.values()))
    yield claim("every other split ends no earlier", rival, ends(splitting.finish_ps, i) <= later)


@theorem(
    "C5",
    "the split in whole blocks ends within one block of the best split into fractions of blocks",
    splitting.finish_ps,
    splitting.next_finish_ps,
)
def c5() -> Iterator[Obligation]:
    """At the best fractional time no source could have delivered more than it carries, and the last one less: so were
    the whole-block split more than a block later, the fractions would not add up to the total."""
    j, last = source("j"), source("last")
    best, slowest = z3.Real("best"), z3.Int("slowest_per_block")
    end = ends(splitting.finish_ps, last)
    pre = {
        "sources": z3.And(source_ok(j), source_ok(last), last[2] >= 1, best >= 0),
        "slowest": z3.And(slowest >= j[1], slowest >= last[1]),
        "levelled": levelled(last, j),
        "more than a block later": z3.ToReal(end) > best + z3.ToReal(slowest),
    }
    amount = z3.Real("fraction")  # what a source with these numbers has delivered by `best`

    def delivers(s: tuple[Any, Any, Any]) -> Any:
        reach = best - z3.ToReal(s[0])
        return z3.If(reach > 0, amount * z3.ToReal(s[1]) == reach, amount == 0)

    yield claim("none more than it carries", {**pre, "by then": delivers(j)}, amount <= z3.ToReal(j[2]))
    yield claim("the last one less", {**pre, "by then": delivers(last)}, amount < z3.ToReal(last[2]))


@theorem(
    "C8",
    "computing the front while the back arrives: where computing overtakes fetching, that front or the one before is "
    "best of all",
    splitting.meet_ps,
    costing.prefill_ps,
    costing.fetch_ps,
)
def c8() -> Iterator[Obligation]:
    c, signs = coefficients()
    cached, size, total, start, rate, front = z3.Ints("cached block_tokens blocks start per_block front")
    extra = z3.Int("extra")
    pre = {
        "not negative": z3.And(signs, cached >= 0, start >= 0),
        "positive": z3.And(size >= 1, rate >= 1),
        "range": z3.And(0 <= front, 0 <= extra, front + extra <= total),
    }
    facts = list(pre.values())

    def computed(x: Any) -> Any:
        return lift(costing.prefill_ps, c, x * size, cached, assume=facts)

    def fetched(x: Any) -> Any:
        return lift(costing.fetch_ps, start, total - x, rate, assume=facts)

    def meet(x: Any) -> Any:
        return lift(splitting.meet_ps, c, cached, size, total, start, rate, x, assume=facts)

    overtaken = {**pre, "computing has overtaken": computed(front) >= fetched(front)}
    yield claim("a longer front is no better", overtaken, meet(front) <= meet(front + extra))
    behind = {**pre, "fetching still takes longer": computed(front + extra) < fetched(front + extra)}
    yield claim("a shorter front is no better", behind, meet(front + extra) <= meet(front))
