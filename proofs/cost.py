"""Selection, over the integer formulas that quote: picoseconds in, microseconds out.

Products of symbols are kept easy by writing "not less" as "plus something that is not negative" (`more`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from kvshare_research.core import costing, splitting

from .kit import Obligation, claim, theorem
from .spec import ints, larger
from .symexec import lift, paths

COEFFICIENTS = "c0 c1 c2 c3 c4"


def choice(prefix: str) -> costing.Choice:
    return costing.Choice(*ints(prefix, "ttft_us moved_bytes action executor source"))


def before(x: costing.Choice, y: costing.Choice) -> Any:
    """x comes before y: by time, then bytes, then action, executor and source."""
    out: Any = z3.BoolVal(False)
    for p, q in reversed(list(zip(x, y, strict=True))):
        out = z3.Or(p < q, z3.And(p == q, out))
    return out


def not_after(x: costing.Choice, y: costing.Choice) -> Any:
    return z3.Not(before(y, x))


def equal(x: costing.Choice, y: costing.Choice) -> Any:
    return z3.And(*[p == q for p, q in zip(x, y, strict=True)])


@theorem(
    "C0",
    "the formulas are the written ones: prefill c0 + c1 s + c2 k + c3 s k + c4 s s, fetch from its setup on, nothing "
    "for nothing",
    costing.prefill_ps,
    costing.setup_ps,
    costing.fetch_ps,
    costing.ttft_us,
    splitting.finish_ps,
    splitting.next_finish_ps,
    splitting.capped_ps,
)
def c0() -> Iterator[Obligation]:
    c = costing.PrefillCoefficients(*ints("c", COEFFICIENTS))
    s, k, rtt, inflight, rate, moved, start, n = z3.Ints("s k rtt inflight rate moved start n")
    polynomial = c[0] + c[1] * s + c[2] * k + c[3] * s * k + c[4] * s * s
    yield claim("prefill", {}, lift(costing.prefill_ps, c, s, k) == z3.If(s <= 0, 0, polynomial))
    yield claim("setup", {}, lift(costing.setup_ps, rtt, inflight, rate) == rtt * 1_000_000 + inflight * rate)
    yield claim("fetch", {}, lift(costing.fetch_ps, start, moved, rate) == z3.If(moved <= 0, 0, start + moved * rate))
    yield claim("finish", {}, lift(splitting.finish_ps, start, rate, n) == z3.If(n <= 0, 0, start + n * rate))
    yield claim("next finish", {}, lift(splitting.next_finish_ps, start, rate, n) == start + (n + 1) * rate)
    yield claim("capped", {}, lift(splitting.capped_ps, rtt, start, n, rate) == larger(rtt, start + n * rate))
    a, b, f, g, h, m = ints("part", "route queue fetch front suffix merge")
    yield claim("ttft", {}, lift(costing.ttft_us, a, b, f, g, h, m) == a + larger(f, b + g) + h + m)


@theorem(
    "C1",
    "of any number of ways the chosen one is quoted no later than computing everything, and than every other way",
    costing.better,
)
def c1() -> Iterator[Obligation]:
    """The invariant of a fold over the rows; the first row of a table is a recompute."""
    best, seen, new = choice("best"), choice("seen"), choice("new")
    for i, path in enumerate(paths(costing.better, best, new)):
        got, assume = path.value, {"path": path.condition}
        yield claim(f"one of the two/{i}", assume, z3.Or(equal(got, best), equal(got, new)))
        step = {**assume, "best so far": not_after(best, seen)}
        yield claim(f"step/{i}", step, z3.And(not_after(got, seen), not_after(got, new), got.ttft_us <= seen.ttft_us))


@theorem(
    "C2",
    "one more way never makes the chosen quote worse, and the order of the rows does not matter",
    costing.better,
)
def c2() -> Iterator[Obligation]:
    best, c, d = choice("best"), choice("c"), choice("d")
    for i, path in enumerate(paths(costing.better, best, c)):
        yield claim(f"no worse/{i}", {"path": path.condition}, path.value.ttft_us <= best.ttft_us)

    def both() -> tuple[costing.Choice, costing.Choice]:
        return costing.better(costing.better(best, c), d), costing.better(costing.better(best, d), c)

    for i, path in enumerate(paths(both)):
        yield claim(f"order/{i}", {"path": path.condition}, equal(*path.value))


def more(x: Any, name: str) -> tuple[Any, Any]:
    """A number that is not less than x, and that it is not."""
    extra = z3.Int(name)
    return x + extra, extra >= 0


@theorem(
    "C3",
    "a holder that is no nearer, no less loaded, no faster and has no more is never quoted earlier; neither "
    "is any slower component",
    costing.fetch_us,
    costing.ttft_us,
    costing.prefill_ps,
    costing.overlap_us,
)
def c3() -> Iterator[Obligation]:
    rtt, inflight, rate, moved = ints("link", "rtt inflight rate moved")
    signs = {"not negative": z3.And(rtt >= 0, inflight >= 0, rate >= 0, moved >= 0)}
    arguments = [rtt, inflight, rate, moved]
    for k, name in enumerate(("rtt", "bytes in flight", "rate", "bytes")):
        worse = list(arguments)
        worse[k], not_less = more(arguments[k], "extra")
        good = lift(costing.fetch_us, *arguments, assume=list(signs.values()))
        bad = lift(costing.fetch_us, *worse, assume=[*signs.values(), not_less])
        yield claim(f"fetch: {name}", {**signs, "worse": not_less}, good <= bad)
    parts = ints("part", "route queue fetch front suffix merge")
    for k, part in enumerate(parts):
        worse = list(parts)
        worse[k], not_less = more(part, "extra")
        yield claim(
            f"ttft: {part}", {"worse": not_less}, lift(costing.ttft_us, *parts) <= lift(costing.ttft_us, *worse)
        )
    yield from _prefill_grows()
    queue, fetch, front = ints("part", "queue fetch front")
    once = lift(costing.ttft_us, 0, queue, fetch, front, 0, 0)
    twice = lift(costing.overlap_us, queue, fetch, front)
    yield claim("ttft counts an overlap once", {}, once == queue + fetch + front - twice)
    time = z3.Int("time_ps")
    up = lift(costing.up_to_us, time)
    least = z3.And(up * costing.PS_PER_US >= time, (up - 1) * costing.PS_PER_US < time)
    yield claim("rounding up is least", {}, least)


def coefficients() -> tuple[costing.PrefillCoefficients, Any]:
    c = costing.PrefillCoefficients(*ints("c", COEFFICIENTS))
    return c, z3.And(*[x >= 0 for x in c])


def _prefill_grows() -> Iterator[Obligation]:
    c, signs = coefficients()
    new, cached, extra = z3.Ints("new cached extra")
    pre = {"not negative": z3.And(signs, new >= 0, cached >= 0, extra >= 0)}
    facts = list(pre.values())
    base = lift(costing.prefill_ps, c, new, cached, assume=facts)
    yield claim(
        "more to compute takes no less", pre, base <= lift(costing.prefill_ps, c, new + extra, cached, assume=facts)
    )
    yield claim(
        "more before it takes no less", pre, base <= lift(costing.prefill_ps, c, new, cached + extra, assume=facts)
    )


@theorem(
    "C3x",
    "EXPECTED TO FAIL: a longer prefix at a holder makes that holder's own quote better; it may not, where fetching a "
    "block is dearer than computing it. Only the choice among all ways is monotone",
    costing.fetch_us,
    costing.prefill_ps,
)
def c3x() -> Iterator[Obligation]:
    have, extra, rate, block_bytes, block_tokens, total = z3.Ints("have extra rate block_bytes block_tokens blocks")
    c = costing.PrefillCoefficients(0, 1, 0, 0, 0)
    pre = {
        "blocks": z3.And(have >= 1, extra >= 1, have + extra <= total, rate >= 0),
        "sizes": z3.And(block_bytes == 2, block_tokens == 1),
    }

    def quote(blocks: Any) -> Any:
        fetch = lift(costing.fetch_ps, 0, blocks * block_bytes, rate, assume=list(pre.values()))
        return fetch + lift(costing.prefill_ps, c, (total - blocks) * block_tokens, blocks, assume=list(pre.values()))

    yield claim("a longer prefix is quoted no later", pre, quote(have + extra) <= quote(have), expect="refuted")


@theorem(
    "C6",
    "fetching a prefix, then computing the rest, is best all or nothing: a part pays only where both overlap",
    costing.prefill_ps,
)
def c6() -> Iterator[Obligation]:
    names = z3.Reals("c.c0 c.c1 c.c2 c.c3 c.c4")
    c = costing.PrefillCoefficients(*names)
    fetched, longest, total, rate, start = z3.Reals("fetched longest total rate start")
    pre = {
        "not negative": z3.And(*[x >= 0 for x in (*names, rate, start)]),
        "range": z3.And(0 < fetched, fetched < longest, longest < total),
        "causal attention: new pairs cost no more than cached ones": names[4] <= names[3],
    }

    def whole(k: Any) -> Any:
        return start + k * rate + lift(costing.prefill_ps, c, total - k, k, assume=[*pre.values(), total - k > 0])

    part = whole(fetched)
    chord = fetched * whole(longest) + (longest - fetched) * whole(z3.RealVal(0))
    yield claim("a part is above the chord of all and nothing", pre, part * longest >= chord)


@theorem(
    "C7",
    "estimates that are off by at most delta cost at most 2 delta: the chosen way takes that much more than the best",
    costing.better,
)
def c7() -> Iterator[Obligation]:
    best, other = choice("best"), choice("other")
    delta, true_best, true_other = z3.Ints("delta true.best true.other")
    near = z3.And(
        best.ttft_us - true_best <= delta, true_best - best.ttft_us <= delta,
        other.ttft_us - true_other <= delta, true_other - other.ttft_us <= delta,
    )  # fmt: skip
    for i, path in enumerate(paths(costing.better, best, other)):
        took = z3.If(equal(path.value, best), true_best, true_other)
        least = -larger(-true_best, -true_other)
        assume = {"path": path.condition, "near": near, "distinct rows": z3.Not(equal(best, other))}
        yield claim(f"{i}", assume, took <= least + 2 * delta)


@theorem(
    "C9",
    "a node's pace scales every coefficient, rounded down by less than one picosecond; a pace of 1000 changes nothing",
    costing.paced,
)
def c9() -> Iterator[Obligation]:
    c = costing.PrefillCoefficients(*ints("c", COEFFICIENTS))
    pace = z3.Int("pace")
    for name, given, scaled in zip(c._fields, c, lift(costing.paced, c, pace), strict=True):
        yield claim(name, {}, z3.And(1000 * scaled <= given * pace, given * pace < 1000 * scaled + 1000))
    for name, given, scaled in zip(c._fields, c, lift(costing.paced, c, 1000), strict=True):
        yield claim(f"{name} at 1000", {}, scaled == given)


@theorem(
    "C10",
    "decoding takes what its steps take: none takes nothing, and one more reads the weights and all tokens before it",
    costing.decode_ps,
)
def c10() -> Iterator[Obligation]:
    step, each, context, half = z3.Ints("step_ps ps_per_token context half")
    yield claim("none", {}, lift(costing.decode_ps, step, each, 0, context) == 0)
    for parity in (0, 1):  # every number of steps is one of the two; Z3 then divides by two without searching
        steps = 2 * half + parity
        more = lift(costing.decode_ps, step, each, steps + 1, context)
        now = lift(costing.decode_ps, step, each, steps, context)
        yield claim(f"one more after 2n + {parity}", {}, more == now + step + each * (context + steps))


@theorem(
    "C11",
    "a price is the TTFT and the weighed wait of those held up: nobody or no weight adds nothing, no part makes it "
    "less, and at full weight the least price is the least added to everybody's times together",
    costing.priced_us,
)
def c11() -> Iterator[Obligation]:
    ttft, prefill, held, weight, extra = z3.Ints("ttft prefill held_up weight extra")
    price = costing.priced_us
    pre = {"not negative": z3.And(prefill >= 0, held >= 0, weight >= 0, extra >= 0)}
    facts = list(pre.values())
    now = lift(price, ttft, prefill, held, weight, assume=facts)
    yield claim("nobody is held up", {}, lift(price, ttft, prefill, 0, weight) == ttft)
    yield claim("no weight", {}, lift(price, ttft, prefill, held, 0) == ttft)
    yield claim("never before the first token", pre, now >= ttft)
    share, wait = 1000 * (now - ttft), prefill * held * weight
    yield claim("the weighed wait, rounded down", {}, z3.And(share <= wait, wait < share + 1000))
    arguments = [ttft, prefill, held, weight]
    for k, part in enumerate(("ttft", "prefill", "held up", "weight")):
        worse = list(arguments)
        worse[k] = worse[k] + extra
        yield claim(f"more: {part}", pre, now <= lift(price, *worse, assume=facts))
    # Of one more prefill the requests held up are each delayed by all of it, and the new one by its TTFT.
    others = z3.Int("held_up_there"), z3.Int("prefill_there"), z3.Int("ttft_there")
    there = lift(price, others[2], others[1], others[0], 1000)
    here = lift(price, ttft, prefill, held, 1000)
    added = ttft + held * prefill <= others[2] + others[0] * others[1]
    yield claim("least for all together", {}, (here <= there) == added)
