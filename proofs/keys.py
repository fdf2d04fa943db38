"""Equal hashes mean equal namespaces and equal prefixes, given a hash without collisions (a PRF, for strangers)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from kvshare_research.guard import namespace

from .kit import Obligation, claim, theorem

Bytes = z3.SeqSort(z3.BitVecSort(8))
LENGTH_BYTES, PARENT_BYTES = 4, 16
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
    same_input = z3.Concat(parent1, tokens1) == z3.Concat(parent2, tokens2)
    both = z3.And(parent1 == parent2, tokens1 == tokens2)
    yield claim("parent and tokens are uniquely decodable", {"widths": widths, "equal": same_input}, both)


def _chain() -> Iterator[Obligation]:
    """Depth by depth: hash(d) = H(key(d), hash(d - 1), tokens(d)), where key(d) may change with d."""
    Hash, Tokens = z3.DeclareSort("Hash"), z3.DeclareSort("Tokens")
    h = z3.Function("H", Hash, Hash, Tokens, Hash)
    hash1, hash2, key1, key2 = (z3.Function(n, z3.IntSort(), Hash) for n in ("hash1", "hash2", "key1", "key2"))
    text1, text2 = (z3.Function(n, z3.IntSort(), Tokens) for n in ("tokens1", "tokens2"))
    n, d = z3.Ints("n d")

    def agree(depth: Any) -> Any:
        at = z3.And(text1(d) == text2(d), key1(d) == key2(d))
        return z3.ForAll(d, z3.Implies(z3.And(1 <= d, d <= depth), at))

    step1, step2 = (h(k(n + 1), x(n), t(n + 1)) for k, x, t in ((key1, hash1, text1), (key2, hash2, text2)))
    injective = z3.And(key1(n + 1) == key2(n + 1), hash1(n) == hash2(n), text1(n + 1) == text2(n + 1))
    facts = {
        "n": n >= 0,
        "step": z3.And(hash1(n + 1) == step1, hash2(n + 1) == step2),
        "no collision": z3.Implies(step1 == step2, injective),
        "hypothesis": z3.Implies(hash1(n) == hash2(n), agree(n)),
        "equal": hash1(n + 1) == hash2(n + 1),
    }
    yield claim("equal at depth n + 1: equal keys and tokens up to there", facts, agree(n + 1))
    yield claim("depth 0", {}, agree(z3.IntVal(0)))
