"""The contract of the index family, for every file in conf/index: one state machine, the specification beside it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from . import kit

NODES, DEPTH = 3, 9  # deep enough for a galloping search to jump over a hole
NODE, TIER = st.integers(0, NODES - 1), st.integers(0, 1)
# One trunk (all zeros) and a branch at each depth: whole chains, and any prefix of them.
CHAINS = [(0,) * DEPTH, *((0,) * k + (1,) + (0,) * (DEPTH - k - 1) for k in range(DEPTH))]
PATH = st.builds(lambda chain, length: chain[:length], st.sampled_from(CHAINS), st.integers(1, DEPTH))
SOME_PATHS = st.lists(PATH, min_size=1, max_size=5)


class Model:
    """The contract said a second way: a bag of (node, tier, path)."""

    def __init__(self) -> None:
        self.copies: dict[tuple[int, int, kit.Path], int] = {}

    def depth(self, node: int, tier: int, path: kit.Path) -> int:
        k = 0
        while k < len(path) and (node, tier, path[: k + 1]) in self.copies:
            k += 1
        return k


def machine(name: str) -> type[RuleBasedStateMachine]:
    class IndexMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.store = kit.load(name).new_store(NODES)
            self.model = Model()

        @rule(node=NODE, tier=TIER, path=PATH, start=st.integers(0, DEPTH - 1))
        def store_stretch(self, node: int, tier: int, path: kit.Path, start: int) -> None:
            """A stretch of a chain, its parent perhaps never announced."""
            stretch = [path[: k + 1] for k in range(min(start, len(path) - 1), len(path))]
            self.store.store(node, tier, kit.parent(stretch[0]), [kit.block(p) for p in stretch])
            for p in stretch:
                self.model.copies[node, tier, p] = self.model.copies.get((node, tier, p), 0) + 1

        @rule(node=NODE, tier=TIER, paths=SOME_PATHS)
        def remove_any(self, node: int, tier: int, paths: list[kit.Path]) -> None:
            unknown = 0
            for p in paths:
                copies = self.model.copies.pop((node, tier, p), 0)
                unknown += not copies
                if copies > 1:
                    self.model.copies[node, tier, p] = copies - 1
            assert self.store.remove(node, tier, [kit.block(p) for p in paths]) == unknown

        @rule(node=NODE, tier=TIER | st.none())
        def clear(self, node: int, tier: int | None) -> None:
            self.store.clear(node, tier)
            self.model.copies = {k: v for k, v in self.model.copies.items() if k[0] != node or tier not in (None, k[1])}

        @invariant()
        def answers_are_the_longest_runs(self) -> None:
            for path in CHAINS:
                truth = {
                    (n, t): d
                    for n in range(NODES)
                    for t in range(2)
                    if (d := kit.floor(name, path, self.model.depth(n, t, path)))
                }
                assert kit.depths(self.store, path) == truth

        @invariant()
        def rows_are_the_state(self) -> None:
            for node in range(NODES):
                expected = sorted(
                    (t, kit.block(p), kit.parent(p), c) for (n, t, p), c in self.model.copies.items() if n == node
                )
                assert list(self.store.rows(node)) == expected
            assert self.store.entry_count() == len(self.model.copies)

    return IndexMachine


@pytest.mark.parametrize("name", kit.NAMES)
def test_any_order_of_changes_gives_the_longest_runs(name: str) -> None:
    case = machine(name).TestCase()
    case.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
    case.runTest()


@pytest.mark.parametrize("name", kit.NAMES)
def test_a_node_that_does_not_exist_is_an_error(name: str) -> None:
    store = kit.load(name).new_store(NODES)
    for node in (-1, NODES):
        with pytest.raises(IndexError):
            store.store(node, 0, None, [kit.block((0,))])


@pytest.mark.parametrize("name", kit.EXACT)
def test_one_copys_removal_leaves_the_others(name: str) -> None:
    """Two nodes, one of them twice: each removal takes exactly one copy, and a further one takes none."""
    store, path = kit.load(name).new_store(2), (1,)
    for node in (0, 1, 0):
        store.store(node, 0, None, [kit.block(path)])
    assert store.remove(0, 0, [kit.block(path)]) == 0
    assert kit.depths(store, path) == {(0, 0): 1, (1, 0): 1}
    assert store.remove(0, 0, [kit.block(path)]) == 0
    assert kit.depths(store, path) == {(1, 0): 1}
    assert store.remove(0, 0, [kit.block(path)]) == 1
    assert kit.depths(store, path) == {(1, 0): 1}


@pytest.mark.parametrize("name", kit.EXACT)
def test_many_nodes_and_tiers(name: str) -> None:
    """Neither 64 nodes nor one tier is a limit."""
    store, path = kit.load(name).new_store(300), (0, 1, 0)
    for node in range(300):
        store.store(node, node % 3, None, [kit.block(path[: k + 1]) for k in range(1 + node % 3)])
    assert kit.depths(store, path) == {(n, n % 3): 1 + n % 3 for n in range(300)}
    assert store.entry_count() == sum(1 + n % 3 for n in range(300))
