"""What becomes shared by a disclosure, and what its end takes back; the epsilon that it costs is conserved."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import z3

from kvshare_research.core import rights
from kvshare_research.core.nouns import Segment
from kvshare_research.disclosure import apart
from kvshare_research.guard import disclosing
from kvshare_research.privacy import balance

from .kit import Obligation, claim, theorem
from .scopes import reads
from .spec import every, membership, reader, scope, scope_ok
from .symexec import lift, paths

WIDER = 2  # position of the wider scope among those of `_Prompt`


class _Prompt:
    """Two segments of any scopes and lengths; all that comes before a segment counts only by its length, so the second
    stands for a segment anywhere in a prompt. The third scope is the one that a front of the prompt moves to."""

    def __init__(self) -> None:
        self.scopes = (scope("first"), scope("second"), scope("wider"))
        self.counts = z3.Ints("first.tokens second.tokens")
        self.segments = tuple(Segment(scope_id=i, token_count=n) for i, n in enumerate(self.counts))
        first, second, wider = self.scopes
        self.pre = {
            "scopes": every(map(scope_ok, self.scopes)),
            "lengths": z3.And(*[n >= 0 for n in self.counts]),
            "the prompt tightens": lift(rights.tightens, first, second),
            "wider is what stands before the tenant's own text, or public": z3.And(
                wider.level < rights.TENANT,
                z3.Implies(first.level < rights.TENANT, lift(rights.tightens, first, wider)),
            ),
        }

    def widened(self, token_count: Any) -> tuple[tuple[Segment, ...], tuple[int, ...]]:
        """Run as it ships."""
        table: Any = SimpleNamespace(scopes=self.scopes)
        return disclosing.widened(self.segments, (0, 1), WIDER, token_count, table)


@theorem(
    "PROMOTE",
    "a promotion moves tenant-scoped text within the released front to the wider scope and nothing else, keeps every "
    "token in its place, and the prompt still tightens: who is not in the wider scope may read what it could before",
    disclosing.widened,
)
def promote() -> Iterator[Obligation]:
    prompt, released = _Prompt(), z3.Int("released.tokens")
    pre = prompt.pre
    for i, path in enumerate(paths(prompt.widened, released, assume=list(pre.values()))):
        pieces, ids = path.value
        assume = {**pre, "path": path.condition}
        assert ids == tuple(piece.scope_id for piece in pieces)
        yield claim(f"every token in its place/{i}", assume, _covers(prompt, pieces, released))
        steps = [lift(rights.tightens, prompt.scopes[a], prompt.scopes[b]) for a, b in itertools.pairwise(ids)]
        yield claim(f"still tightens/{i}", assume, every(steps))
        yield claim(f"others gain nothing/{i}", assume, _gains_nothing(prompt, pieces, reader()))


def _gains_nothing(prompt: _Prompt, pieces: tuple[Segment, ...], r: rights.Reader) -> Any:
    """At any token: who may read it now could read it before, or is in the wider scope."""
    token, wider = z3.Int("token"), prompt.scopes[WIDER]
    starts = [z3.IntVal(0), prompt.counts[0]]
    cases = []
    for piece, start in zip(pieces, _starts(pieces), strict=True):
        for k in (0, 1):
            here = z3.And(start <= token, token < start + piece.token_count)
            there = z3.And(starts[k] <= token, token < starts[k] + prompt.counts[k])
            before = z3.Or(reads(r, prompt.scopes[k]), reads(r, wider))
            cases.append(z3.Implies(z3.And(here, there, reads(r, prompt.scopes[piece.scope_id])), before))
    return every(cases)


def _covers(prompt: _Prompt, pieces: tuple[Segment, ...], released: Any) -> Any:
    """The pieces cut the two segments in order; one has its segment's scope, or is a tenant's text in the released
    front and has the wider one."""
    starts = [z3.IntVal(0), prompt.counts[0]]
    ends = [prompt.counts[0], prompt.counts[0] + prompt.counts[1]]
    at, good = z3.IntVal(0), []
    for piece in pieces:
        end = at + piece.token_count
        inside = [z3.And(starts[k] <= at, end <= ends[k]) for k in (0, 1)]
        if piece.scope_id == WIDER:
            moved = [z3.And(inside[k], prompt.scopes[k].level == rights.TENANT, end <= released) for k in (0, 1)]
            good.append(z3.Or(*moved))
        else:
            good.append(inside[piece.scope_id])
        at = end
    # nothing of the tenant's text in the front was left behind
    left = [
        z3.Or(prompt.scopes[p.scope_id].level != rights.TENANT, p.token_count == 0, s >= released)
        for p, s in zip(pieces, _starts(pieces), strict=True)
        if p.scope_id != WIDER
    ]
    return z3.And(at == ends[1], *good, *left)


def _starts(pieces: tuple[Segment, ...]) -> list[Any]:
    at, found = z3.IntVal(0), []
    for piece in pieces:
        found.append(at)
        at = at + piece.token_count
    return found


@theorem(
    "PROMOTE-N",
    "the same for any number of segments, by induction over the prompt: each step moves exactly the tenant-scoped "
    "tokens before the end of the front, and what has been put together so far tightens",
    disclosing.moved_tokens,
    rights.tightens,
)
def promote_any_prompt() -> Iterator[Obligation]:
    """`before`: the scope of the last segment so far; `last`: what it ended with in the widened prompt; `at`: tokens
    passed. Both begin as public, with none passed."""
    before, last, here, wider = scope("before"), scope("last"), scope("here"), scope("wider")
    at, count, released, token = z3.Ints("at count released token")

    def same(a: rights.Scope, b: rights.Scope) -> Any:
        return z3.And(a.level == b.level, a.party == b.party)

    def holds(before: rights.Scope, last: rights.Scope, at: Any) -> Any:
        kept = z3.And(same(last, before), z3.Implies(before.level == rights.TENANT, at >= released))
        return z3.Or(kept, z3.And(before.level == rights.TENANT, same(last, wider)))

    start = rights.Scope(z3.IntVal(rights.PUBLIC), z3.IntVal(rights.NOBODY))
    front = {"scopes": every(map(scope_ok, (before, last, here, wider))), "wider": wider.level < rights.TENANT}
    yield claim("begins", front, z3.And(holds(start, start, z3.IntVal(0)), lift(rights.tightens, start, wider)))
    pre = {
        **front,
        "so far": z3.And(holds(before, last, at), at >= 0, count >= 0),
        "the prompt tightens": lift(rights.tightens, before, here),
        "wider is what stands before the tenant's own text, or public": z3.Implies(
            before.level < rights.TENANT, lift(rights.tightens, before, wider)
        ),
    }
    given = (here.level, count, released - at)
    for i, path in enumerate(paths(disclosing.moved_tokens, *given, assume=list(pre.values()))):
        assume = {**pre, "path": path.condition}
        moved = 0 if path.value is None else path.value
        inside = {**assume, "a token of it": z3.And(at <= token, token < at + count)}
        front_of_tenant = z3.And(here.level == rights.TENANT, token < released)
        yield claim(f"exactly the tenant's front moves/{i}", inside, (token < at + moved) == front_of_tenant)
        yield claim(f"no more than there is/{i}", assume, z3.And(moved >= 0, moved <= count))
        ways = [("all", moved == count, [wider]), ("part", moved != count, [wider, here])]
        for name, cut, pieces in [("stays", z3.BoolVal(True), [here])] if path.value is None else ways:
            steps = [lift(rights.tightens, a, b) for a, b in itertools.pairwise([last, *pieces])]
            then = z3.And(*steps, holds(here, pieces[-1], at + count))
            yield claim(f"{name}: tightens, and so it goes on/{i}", assume, z3.Implies(cut, then))


@theorem(
    "PROMOTE-KEY",
    "nothing stored is ever re-keyed: at every depth the name of promoted text differs from the name the same text had "
    "before, so what was stored before a promotion is found by no chain of after it, and the other way round",
)
def promote_key() -> Iterator[Obligation]:
    """By I8: hash(d) = H(key(scope), hash(d - 1), tokens), equal hashes have equal keys; keys name their scopes."""
    Hash, Tokens = z3.DeclareSort("Hash"), z3.DeclareSort("Tokens")
    h = z3.Function("H", Hash, Hash, Tokens, Hash)
    key = z3.Function("key", z3.IntSort(), z3.IntSort(), Hash)
    own, wider = scope("own"), scope("wider")
    parent, parent2, text = z3.Const("parent", Hash), z3.Const("parent2", Hash), z3.Const("text", Tokens)
    before = h(key(own.level, own.party), parent, text)
    after = h(key(wider.level, wider.party), parent2, text)
    facts = {
        "a promotion": z3.And(own.level == rights.TENANT, wider.level < rights.TENANT),
        "no collision": z3.Implies(before == after, key(own.level, own.party) == key(wider.level, wider.party)),
        "a key names its scope": z3.Implies(
            key(own.level, own.party) == key(wider.level, wider.party),
            z3.And(own.level == wider.level, own.party == wider.party),
        ),
    }
    yield claim("two names", facts, before != after)


@theorem(
    "DEMOTE",
    "after a demotion every prompt has the scopes it had before any promotion, whatever its length: new requests ask "
    "for nothing and publish nothing under the wider scope",
    disclosing.widened,
)
def demote() -> Iterator[Obligation]:
    prompt = _Prompt()
    for i, path in enumerate(paths(prompt.widened, z3.IntVal(0), assume=list(prompt.pre.values()))):
        pieces, ids = path.value
        as_before = every(p.token_count == n for p, n in zip(pieces, prompt.counts, strict=False))
        yield claim(
            f"as before/{i}", {**prompt.pre, "path": path.condition}, z3.And(as_before, z3.BoolVal(ids == (0, 1)))
        )


@theorem(
    "LEAK-3",
    "a demotion takes nothing back: what was stored under the wider scope stays readable to it until it is evicted",
    rights.may_read,
)
def demotion_takes_nothing_back() -> Iterator[Obligation]:
    wider, r, row, now = scope("wider"), reader(), membership(), z3.Int("now")
    denied = z3.Not(lift(rights.may_read, wider, r, row, now))
    yield claim("read after the demotion", {"stored as": wider.level < rights.TENANT}, denied, expect="refuted")


@theorem(
    "EPS",
    "what is spent and what remains always add up to the budget; a release that would exceed it is refused and costs "
    "nothing; no sequence of releases and refusals ever spends more than the budget",
    balance.settle,
)
def epsilon() -> Iterator[Obligation]:
    budget, spent, after = z3.Reals("budget spent after")
    pre = {"budget": budget > 0, "within": z3.And(0 <= spent, spent <= budget), "charges only add": after >= spent}
    for i, path in enumerate(paths(balance.settle, budget, spent, after, assume=list(pre.values()))):
        got, assume = path.value, {**pre, "path": path.condition}
        yield claim(f"conserved/{i}", assume, got.spent + got.remaining == budget)
        yield claim(f"never more than the budget/{i}", assume, z3.And(got.spent <= budget, got.remaining >= 0))
        yield claim(f"never falls/{i}", assume, got.spent >= spent)
        yield claim(f"refused exactly when it would exceed/{i}", assume, z3.BoolVal(got.ok) == (after <= budget))
        paid = got.spent == (after if got.ok else spent)
        yield claim(f"a refusal costs nothing/{i}", assume, paid)


@theorem(
    "ALONE",
    "where users vote, a name that only one tenant's users ask for counts one vote, however many they are; one vote "
    "more moves what counts by no more than itself, and never down; where no tenant has more than one all votes count",
    apart.apart,
)
def alone() -> Iterator[Obligation]:
    """Over the reals. `largest` is the most that one tenant has cast; the vote is any tenant's, also one that was not
    there before, and may make it the largest."""
    total, largest, theirs, vote = z3.Reals("total largest theirs vote")
    pre = {"votes": z3.And(0 <= theirs, theirs <= largest, largest <= total, 0 <= vote, vote <= 1)}
    pre["others"] = z3.Implies(theirs != largest, theirs + largest <= total)

    def counts() -> tuple[Any, Any]:
        return apart.apart(total, largest), apart.apart(total + vote, max(largest, theirs + vote))

    for i, path in enumerate(paths(counts, assume=list(pre.values()))):
        before, after = path.value
        assume = {**pre, "path": path.condition}
        moved = z3.And(0 <= after - before, after - before <= vote)
        yield claim(f"one tenant is one vote/{i}", assume, z3.Implies(total == largest, before <= 1))
        yield claim(f"a vote moves it by at most itself/{i}", assume, moved)
        yield claim(f"nobody is held back/{i}", assume, z3.Implies(largest <= 1, before == total))
        yield claim(f"never more than was cast/{i}", assume, z3.And(0 <= before, before <= total))
