"""Coarse and fine units: segments, sentences, and the token-level tree."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import Chain, Segment
from kvshare_research.core.ports import Reads
from kvshare_research.core.rights import TENANT, Scope
from kvshare_research.guard.detail import Detail
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace, chain
from kvshare_research.index.radix import RadixIndex
from kvshare_research.index.reference import ReferenceIndex
from kvshare_research.index.units import block_ends, segment_ends, sentence_ends, unit_hashes

from . import kit


def test_ends_of_blocks_segments_and_sentences() -> None:
    assert block_ends(10, 4) == [4, 8]
    assert segment_ends([3, 0, 2]) == [3, 5]
    stop = np.array([9], np.uint32)
    assert sentence_ends(np.array([1, 9, 2, 9, 9, 3], np.uint32), stop) == [2, 5, 6]
    assert sentence_ends(np.array([1, 9], np.uint32), stop) == [2]
    assert sentence_ends(np.array([], np.uint32), stop) == []


def test_unit_hashes_are_chained_and_commit_to_the_cuts() -> None:
    tokens = np.arange(8, dtype=np.uint32)
    whole, other = unit_hashes(bytes(32), tokens, [4, 8]), unit_hashes(bytes(32), tokens, [3, 8])
    assert len(set(whole + other)) == 4
    assert unit_hashes(bytes(32), tokens[:4], [4]) == whole[:1]


# ------------------------------------------------------------- what a chain tells of units
DIRECTORY = Directory(tenants=("ann",), groups=(), scopes=(Scope(0, 0), Scope(TENANT, 1)))
SPACE = ModelSpace(model="m", dtype="fp32", block_tokens=2)
STOP = np.array([9], np.uint32)


def told(tokens: list[int], reads: str, public: int | None = None) -> Chain:
    """The chain of a prompt whose first tokens (all, if not given) are public, the rest the tenant's."""
    public = len(tokens) if public is None else public
    parts = [(0, public), (1, len(tokens) - public)]
    segments = tuple(Segment(scope_id=scope, token_count=count) for scope, count in parts if count)
    return chain(
        np.array(tokens, np.uint32), segments, tuple(s.scope_id for s in segments), directory=DIRECTORY,
        ring=KeyRing(RootSecret.from_seed(1)), space=SPACE, detail=Detail(reads=reads, enders=STOP),
    )  # fmt: skip


def test_a_chain_tells_units_only_to_an_index_that_reads_them() -> None:
    tokens = [1, 2, 9, 3, 4, 5, 6]
    assert told(tokens, "blocks", 5).unit_ends == ()
    assert told(tokens, "segments", 5).unit_ends == (2, 3), (
        "less than a block of the first segment is in no whole block"
    )
    assert told(tokens, "sentences", 5).unit_ends == (1, 2, 3)
    assert len(told(tokens, "tokens").token_names) == 4 * 7
    assert {told(tokens, reads, 5).hashes for reads in get_args(Reads)} == {told(tokens, "blocks", 5).hashes}


@pytest.mark.parametrize("name", kit.COARSE)
def test_a_chain_that_tells_no_units_has_its_scopes(name: str) -> None:
    store, path = kit.load(name).new_store(2), (0, 1, 0, 1)
    store.store(0, 0, None, [kit.block(path[:k]) for k in (1, 2, 3)])
    store.store(1, 0, None, [kit.block(path[:1])])
    given = Chain(hashes=kit.chain(path).hashes, scope_ends=((0, 2), (5, 4)), block_tokens=16)
    assert [(r.node, r.block_count) for r in store.match(given).runs] == [(0, 2)]


# ------------------------------------------------------------- tokens
PROMPT = st.lists(st.integers(0, 1), min_size=1, max_size=9)


@given(
    steps=st.lists(st.tuples(st.integers(0, 2), PROMPT, st.integers(0, 4)), max_size=10), query=PROMPT, most=st.just(64)
)
def test_the_estimate_is_the_longest_common_front_with_what_a_node_holds(steps: list, query: list, most: int) -> None:
    """Whole prompts are stored, and some lose a block; what hangs from a lost block does not count."""
    store, held = RadixIndex(inner=ReferenceIndex(), named_blocks_max=most).new_store(3), set()
    for node, prompt, lost in steps:
        made = told(prompt, "tokens")
        store.seen(made)
        for i in range(made.block_count):
            if (node, tuple(prompt[: 2 * i + 2])) not in held:
                store.store(node, 0, made.block_hash(i - 1) if i else None, [made.block_hash(i)])
                held.add((node, tuple(prompt[: 2 * i + 2])))
        if lost < made.block_count:
            store.remove(node, 0, [made.block_hash(lost)])
            held.discard((node, tuple(prompt[: 2 * lost + 2])))
    asked = told(query, "tokens")

    def depth(node: int) -> int:
        rooted = [p for n, p in held if n == node and all((n, p[:k]) in held for k in range(2, len(p), 2))]
        common = [
            next((i for i, (x, y) in enumerate(zip(p, query, strict=False)) if x != y), min(len(p), len(query)))
            for p in rooted
        ]
        return max(common, default=0)

    truth = {(node, 0): tokens for node in range(3) if (tokens := depth(node))}
    assert store.estimate(asked) == truth
    whole = {(r.node, r.tier): 2 * r.block_count for r in store.match(asked).runs}
    assert all(whole[place] <= truth[place] < whole[place] + 2 or len(query) % 2 for place in whole)


def test_the_tokens_of_two_scopes_never_agree() -> None:
    """An equal start of a block under another key counts nothing, and an old mark makes room for a new one."""
    store = RadixIndex(inner=ReferenceIndex(), named_blocks_max=2).new_store(1)
    public, private = told([1, 2, 3, 4], "tokens"), told([1, 2, 3, 5], "tokens", 2)
    for made in (public, private):
        store.seen(made)
        store.store(0, 0, None, made.block_hashes(0, made.block_count))
    assert store.estimate(told([1, 2, 3, 6], "tokens", 2)) == {(0, 0): 3}, "with the private block"
    assert store.estimate(told([1, 2, 3, 6], "tokens")) == {(0, 0): 2}, "the public one has made room"
    assert store.named_blocks == 2
