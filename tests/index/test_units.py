"""Coarse and fine units: segments, sentences, and the token-level tree."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvshare_research.core.nouns import Chain
from kvshare_research.index.radix import TokenTrie
from kvshare_research.index.units import block_ends, segment_ends, sentence_ends, unit_hashes

from . import kit

PROMPT = st.lists(st.integers(0, 1), min_size=1, max_size=12).map(lambda t: np.array(t, np.uint32))


@given(steps=st.lists(st.tuples(st.integers(0, 2), PROMPT, st.booleans()), max_size=12), query=PROMPT)
def test_the_token_tree_tells_the_longest_common_front(steps: list, query: np.ndarray) -> None:
    trie, seen = TokenTrie(), {n: [] for n in range(3)}
    for node, prompt, forget in steps:
        if forget and len(prompt) < 4:
            trie.forget(node)
            seen[node] = []
        else:
            trie.insert(node, prompt)
            seen[node].append(prompt)

    def common(a: np.ndarray, b: np.ndarray) -> int:
        return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

    truth = {n: max((common(p, query) for p in prompts), default=0) for n, prompts in seen.items()}
    assert trie.match(query) == {n: depth for n, depth in truth.items() if depth}
    edges = trie.edge_count
    for node in range(3):
        trie.forget(node)
    assert trie.edge_count == 0 <= edges


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


def test_a_coarse_index_answers_the_specification_floored_to_its_unit() -> None:
    store, path = kit.load("segment").new_store(2), (0, 1, 0, 1)
    store.store(0, 0, None, [kit.block(path[:k]) for k in (1, 2, 3)])
    store.store(1, 0, None, [kit.block(path[:1])])
    hashes = kit.chain(path).hashes
    chain = Chain(hashes=hashes, scope_ends=((0, 2), (5, 4)), block_tokens=16)
    assert [(r.node, r.block_count) for r in store.match(chain).runs] == [(0, 2)]
