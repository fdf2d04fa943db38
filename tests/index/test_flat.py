"""The flat index, compiled and plain: long chains with holes, bounded memory, publishers that contradict themselves."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvshare_research.core.errors import ConfigError
from kvshare_research.index.flat import FlatIndex, FlatStore, keys_of
from kvshare_research.index.plain import PlainStore
from kvshare_research.index.reference import ReferenceIndex

from . import kit

BOTH = pytest.mark.parametrize("compiled", [True, False])


def trunk(length: int, branch: int = 0) -> list[kit.Path]:
    return [(branch,) * min(k, 1) + (0,) * (k - 1) for k in range(1, length + 1)]


@BOTH
@pytest.mark.parametrize("hole_share", [0.0, 0.01, 0.3])
def test_long_chains_with_holes_are_told_exactly(compiled: bool, hole_share: float) -> None:
    """130 nodes, 300 blocks, evictions inside chains, some of it stored again: every answer is the specification's."""
    rng = random.Random(f"{compiled} {hole_share}")
    store, truth = (index.new_store(130) for index in (FlatIndex(compiled=compiled), ReferenceIndex()))
    chains = [[kit.block((c, *([0] * k))) for k in range(300)] for c in range(3)]
    for node in range(130):
        for whole in rng.sample(chains, 2):
            stored = whole[: rng.choice([1, 2, 17, 150, 299, 300])]
            for s in (store, truth):
                s.store(node, node % 2, None, stored)
    for _ in range(6):
        for node in range(130):
            holes = [h for whole in chains for h in whole if rng.random() < hole_share]
            rng.shuffle(holes)
            assert store.remove(node, node % 2, holes) == truth.remove(node, node % 2, holes)
            again, start, length = rng.choice(chains), rng.randrange(1, 300), rng.randrange(4)
            for s in (store, truth):
                s.store(node, node % 2, again[start - 1], again[start : start + length])
        for c in range(3):
            for length in (1, 2, 64, 299, 300):
                path = (c, *([0] * (length - 1)))
                assert store.match(kit.chain(path)) == truth.match(kit.chain(path))
        assert store.entry_count() == truth.entry_count()


def test_a_batch_answers_like_one_by_one() -> None:
    store = FlatStore(70)
    for node in range(70):
        store.store(node, 0, None, [kit.block(p) for p in trunk(node % 9, node % 2)])
    queries = [kit.chain(trunk(k, k % 2)[-1]) for k in range(1, 9)]
    offsets = np.cumsum([0, *(q.block_count for q in queries)])
    together = store.match_many_keys(keys_of(b"".join(q.hashes for q in queries)), offsets)
    assert [row.tolist() for row in together] == [store.match_keys(keys_of(q.hashes)).tolist() for q in queries]


@BOTH
def test_a_full_index_drops_tails_keeps_roots_and_never_claims_more(compiled: bool) -> None:
    rng = random.Random(3)
    store, truth = FlatIndex(blocks_max=40, compiled=compiled).new_store(2), ReferenceIndex().new_store(2)
    roots = [(c,) for c in range(10)]
    for path in roots:
        for s in (store, truth):
            s.store(0, 0, None, [kit.block(path)])
    for _ in range(400):
        path = (rng.randrange(10), *(rng.randrange(2) for _ in range(rng.randrange(8))))
        stretch = [kit.block(path[:k]) for k in range(1, len(path) + 1)]
        node, removes = rng.randrange(2), rng.random() < 0.2
        for s in (store, truth):
            s.store(node, 0, None, stretch)
            if removes:
                s.remove(node, 0, stretch[-1:])
        told, true = kit.depths(store, path), kit.depths(truth, path)
        assert all(depth <= true[column] for column, depth in told.items())
        assert store.entry_count() <= 80
    assert store.counters["dropped"] > 100
    assert all(kit.depths(store, path).get((0, 0)) for path in roots if kit.depths(truth, path).get((0, 0)))


@BOTH
def test_an_index_full_of_roots_refuses_and_counts(compiled: bool) -> None:
    store = FlatIndex(blocks_max=3, compiled=compiled).new_store(1)
    for c in range(5):
        store.store(0, 0, None, [kit.block((c,))])
    assert store.entry_count() == 3
    assert store.counters["refused"] == 2
    store.remove(0, 0, [kit.block((0,))])
    store.store(0, 0, None, [kit.block((9,))])
    assert kit.depths(store, (9,)) == {(0, 0): 1}


@BOTH
def test_contradicting_parents_and_cycles_are_counted_and_harmless(compiled: bool) -> None:
    store = FlatIndex(compiled=compiled).new_store(1)
    a, b, c = (kit.block((k,)) for k in range(3))
    store.store(0, 0, b, [a])
    store.store(0, 0, a, [b])  # a hangs from b, and b from a
    store.store(0, 0, c, [a])  # a hangs from b already
    assert store.counters["contradictions"] == 2
    assert kit.depths(store, (0,)) == {}
    store.remove(0, 0, [a, a, b])
    assert store.entry_count() == 0
    store.store(0, 0, None, [c])
    assert kit.depths(store, (2,)) == {(0, 0): 1}


def test_memory_comes_back_and_stays_within_bounds() -> None:
    """Filling and emptying again and again needs no more memory than once; at most 100 bytes for a block."""
    store, rng = FlatStore(64), np.random.default_rng(0)
    sizes = []
    for _ in range(4):
        keys = rng.integers(0, 1 << 63, (50_000, 2)).astype(np.uint64)
        for at in range(0, len(keys), 500):
            store.store_keys(at % 64, 0, False, keys[at : at + 500])
        sizes.append(store.size_bytes)
        for at in range(0, len(keys), 500):
            assert store.remove_keys(at % 64, 0, keys[at : at + 500]) == 0
        assert store.entry_count() == 0
    assert sizes[0] <= 100 * 50_000
    assert max(sizes) == sizes[0]


def test_impossible_settings_are_explained() -> None:
    with pytest.raises(ConfigError, match="blocks_max"):
        FlatIndex(blocks_max=1)
    assert isinstance(FlatIndex(compiled=False).new_store(1), PlainStore)
    assert isinstance(FlatIndex(compiled=True).new_store(1), FlatStore)
