"""Every retention policy of conf/retention, whatever it values: it answers, alike each time, and the pool stays whole."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from kvshare_research.build import build
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import AccountSpec
from kvshare_research.core.ports import BlockView, Retention

CONF = Path(__file__).parents[2] / "conf" / "retention"
NAMES = sorted(p.stem for p in CONF.glob("*.yaml"))

views = st.builds(
    BlockView,
    slot=st.integers(0, 1000),
    scope_id=st.integers(0, 9),
    depth=st.integers(0, 1000),
    stored_us=st.integers(0, 10**9),
    used_us=st.integers(0, 10**9),
    use_count=st.integers(0, 1000),
    recompute_us=st.integers(0, 10**9),
    level=st.integers(0, 5),
    account_used=st.integers(0, 1000),
    account_reserved=st.integers(0, 1000),
    balance_blocks=st.floats(-1e6, 1e3) | st.just(float("inf")),
    wanted=st.integers(0, 50),
    attention=st.floats(0, 1e6),
    next_use_us=st.none() | st.integers(0, 10**9),
)


class Moody(Retention):
    """A policy that has got a fault: it raises at every other question."""

    def __init__(self, inner: Retention) -> None:
        self.inner, self.ages, self.needs = inner, inner.ages, inner.needs  # type: ignore[misc]
        self.asked = 0

    def refilled(self, balance_blocks: float, elapsed_us: int) -> float:
        if self.asked % 3 == 1:
            raise ZeroDivisionError("planted")
        return self.inner.refilled(balance_blocks, elapsed_us)

    def score(self, block: BlockView, now_us: int) -> float:
        self.asked += 1
        if self.asked % 2:
            raise ZeroDivisionError("planted")
        return self.inner.score(block, now_us)


def policy(name: str) -> Retention:
    made: Retention = build(OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml")), "retention", Retention)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_frozen_documented_value(name: str) -> None:
    made = policy(name)
    assert made.__doc__
    assert dataclasses.fields(made) is not None  # type: ignore[arg-type]
    assert hash(made) == hash(policy(name))


@pytest.mark.parametrize("name", NAMES)
@given(view=views, later_us=st.integers(0, 10**9))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_its_score_is_a_number_and_alike_each_time(name: str, view: BlockView, later_us: int) -> None:
    now_us = max(view.used_us, view.stored_us) + later_us
    score = policy(name).score(view, now_us)
    assert not math.isnan(score)
    assert score == policy(name).score(view, now_us)


@pytest.mark.parametrize("moody", [False, True])
@pytest.mark.parametrize("name", NAMES)
@given(chains=st.lists(st.integers(1, 5), min_size=1, max_size=6), need=st.integers(1, 10))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_what_it_gives_up_are_leaves_and_always_enough(name: str, moody: bool, chains: list[int], need: int) -> None:
    """Whatever it prefers, and if it raises: a pool of unpinned blocks yields any room it has, and no chain is left with
    a hole."""
    retention = Moody(policy(name)) if moody else policy(name)
    ledger = Ledger(capacity_blocks=10, accounts=(AccountSpec(scope_id=0, reserved_blocks=0, limit_blocks=10),), retention=retention)  # fmt: skip
    hashes: list[list[bytes]] = []
    for number, length in enumerate(chains):
        if sum(map(len, hashes)) + length > 10:
            break
        taken, _ = ledger.allocate(0, length, number)
        assert taken is not None
        hashes.append([b"%08d%08d" % (number, i) for i in range(length)])
        for i, block in enumerate(taken):
            ledger.name(block, hashes[-1][i], hashes[-1][i - 1] if i else None, i, number)
            ledger.drop(block)
    taken, _ = ledger.allocate(1, need, 100)

    assert taken is not None
    ledger.check()
    for chain in hashes:
        held = [ledger.find(h, 100) is not None for h in chain]
        assert held == sorted(held, reverse=True)
    assert (ledger.values.errors > 0) == (moody and len(hashes) > 0)
