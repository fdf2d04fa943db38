"""Equal hashes mean equal namespaces and equal prefixes, given a hash without collisions (a PRF, for strangers)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from kvshare_research.guard import namespace

from .kit import Obligation, claim, theorem

Bytes = z3.SeqSort(z3.BitVecSort(8))
LENGTH_BYTES, PARENT_BYTES = 4, 32
size_of = z3.Function("fixed_width", z3.IntSort(), Bytes)  # int.to_bytes(4, "big")
number_of = z3.Function("from_bytes", Bytes, z3.IntSort())  # its inverse, which is what makes it injective


def sequences(names: str) -> list[Any]:
    return [z3.Const(name, Bytes) for name in names.split()]


@theorem(
    "I8",
    "an encoding determines its fields, whatever follows; a block hash determines key, prefix and tokens at every "
    "depth, also where the key switches",
    namespace.framed,
)
def i8() -> Iterator[Obligation]:
    yield from _fields()
    yield from _chain()


def _fields() -> Iterator[Obligation]:
    """Any number of fields, by induction from the left: equal encodings have equal first fields and remainders."""
    tag1, tag2, body1, body2, rest1, rest2 = sequences("tag1 tag2 body1 body2 rest1 rest2")
    facts = {}
    whole = []
    for tag, body, rest in ((tag1, body1, rest1), (tag2, body2, rest2)):
        length = size_of(z3.Length(body))
        facts[f"widths of {tag}"] = z3.And(z3.Length(tag) == 1, z3.Length(length) == LENGTH_BYTES)
        facts[f"length of {body} is decodable"] = number_of(length) == z3.Length(body)
        whole.append(z3.Concat(namespace.framed(tag, length, body), rest))
    equal = z3.And(tag1 == tag2, body1 == body2, rest1 == rest2)
    yield claim("framed fields are uniquely decodable", {**facts, "equal": whole[0] == whole[1]}, equal)
    parent1, parent2, tokens1, tokens2 = sequences("parent1 parent2 tokens1 tokens2")
    widths = z3.And(z3.Length(parent1) == PARENT_BYTES, z3.Length(parent2) == PARENT_BYTES)
    same_input = z3.Concat(tokens1, parent1) == z3.Concat(tokens2, parent2)
    both = z3.And(parent1 == parent2, tokens1 == tokens2)
    yield claim("tokens and parent are uniquely decodable", {"widths": widths, "equal": same_input}, both)


def _chain() -> Iterator[Obligation]:
    """Depth by depth: hash(d) = H(key(d), tokens of blocks first(d) .. d, hash(first(d) - 1)), where first(d) opens the
    span of block d, and a span has one key; neither is taken to be equal in the two prompts."""
    Hash, Tokens = z3.DeclareSort("Hash"), z3.DeclareSort("Tokens")
    text = z3.ArraySort(z3.IntSort(), Tokens)
    h = z3.Function("H", Hash, z3.IntSort(), text, Hash, Hash)  # key, number of blocks, blocks from 0, parent
    hash1, hash2, key1, key2 = (z3.Function(n, z3.IntSort(), Hash) for n in ("hash1", "hash2", "key1", "key2"))
    text1, text2 = (z3.Function(n, z3.IntSort(), Tokens) for n in ("tokens1", "tokens2"))
    n, d, i, first1, first2 = z3.Ints("n d i first1 first2")
    said1, said2 = z3.Const("said1", text), z3.Const("said2", text)

    def agree(depth: Any) -> Any:
        at = z3.And(text1(d) == text2(d), key1(d) == key2(d))
        return z3.ForAll(d, z3.Implies(z3.And(1 <= d, d <= depth), at))

    def spoken(said: Any, tokens: Any, key: Any, first: Any) -> Any:
        """What is hashed is the span so far, block by block, under the key of each of them."""
        here = z3.And(said[i - first] == tokens(i), key(i) == key(n))
        return z3.And(1 <= first, first <= n, z3.ForAll(i, z3.Implies(z3.And(first <= i, i <= n), here)))

    step1 = h(key1(n), n - first1, said1, hash1(first1 - 1))
    step2 = h(key2(n), n - first2, said2, hash2(first2 - 1))
    same = z3.ForAll(i, z3.Implies(z3.And(0 <= i, i <= n - first1), said1[i] == said2[i]))
    injective = z3.And(key1(n) == key2(n), first1 == first2, same, hash1(first1 - 1) == hash2(first2 - 1))
    facts = {
        "spans": z3.And(spoken(said1, text1, key1, first1), spoken(said2, text2, key2, first2)),
        "step": z3.And(hash1(n) == step1, hash2(n) == step2),
        "no collision": z3.Implies(step1 == step2, injective),
        "hypothesis": z3.Implies(hash1(first1 - 1) == hash2(first1 - 1), agree(first1 - 1)),
        "equal": hash1(n) == hash2(n),
    }
    at = z3.Int("at")
    each = z3.And(1 <= at, at <= n)
    yield claim("equal at depth n: equal keys and tokens up to there", {**facts, "at": each}, z3.And(
        text1(at) == text2(at), key1(at) == key2(at)
    ))  # fmt: skip
    yield claim("depth 0", {}, agree(z3.IntVal(0)))
