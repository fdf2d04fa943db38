"""Bytes to blocks, and floors that fit: rounded towards keeping promises, never beyond the pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import AccountSpec
from kvshare_research.guard.quota import blocks_of, fitted
from kvshare_research.retention.lru import LruRetention


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 500), st.integers(0, 100))
def test_floor_up_limit_down(reserved: int, extra: int, block: int, capacity: int) -> None:
    limit = reserved + extra + 2 * block
    blocks, most = blocks_of(reserved, limit, block_bytes=block, capacity_blocks=capacity, name="x")
    assert (blocks - 1) * block < reserved <= blocks * block
    assert most * block <= limit < (most + 1) * block


def test_a_limit_below_its_floor_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"`acme`.*needs 2 blocks.*holds 1"):
        blocks_of(11, 19, block_bytes=10, capacity_blocks=9, name="acme")
    assert blocks_of(11, None, block_bytes=10, capacity_blocks=9, name="acme") == (2, 9)


FLOORS = st.lists(st.integers(0, 50), min_size=1, max_size=6)


@given(FLOORS, st.integers(0, 100))
def test_scaled_floors_fit_and_keep_their_proportion(floors: list[int], capacity: int) -> None:
    specs = [AccountSpec(scope_id=i, reserved_blocks=r, limit_blocks=100) for i, r in enumerate(floors)]
    given_specs, changes = fitted(specs, capacity, oversubscribed="scale")
    total = sum(floors)
    assert sum(s.reserved_blocks for s in given_specs) <= capacity or total <= capacity
    for asked, got in zip(floors, given_specs, strict=True):
        share = asked if total <= capacity else asked * capacity / total
        assert share - 1 < got.reserved_blocks <= share
    assert {c.scope_id for c in changes} == {i for i, s in enumerate(given_specs) if s.reserved_blocks != floors[i]}
    Ledger(capacity_blocks=capacity, accounts=given_specs, retention=LruRetention()).check()


def test_oversubscribed_floors_are_refused_by_default() -> None:
    specs = [AccountSpec(scope_id=i, reserved_blocks=6, limit_blocks=10) for i in range(2)]
    assert fitted(specs, 12) == (tuple(specs), ())
    with pytest.raises(ConfigError, match="come to 12 blocks, more than the pool of 11"):
        fitted(specs, 11)
