"""`cheapest`: the least price over drawn tables, whatever is held up; at the ends of its weight, what it says it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvshare_research.core.costing import priced_us
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Action, QuoteTable
from kvshare_research.cost.ttft import TtftCost
from kvshare_research.selector.cheapest import Cheapest
from kvshare_research.testing.tables import random_input, table_of

COST = TtftCost(
    c0_ps=55 * 10**9, c1_ps_per_token=13 * 10**8, c2_ps_per_token=0, c3_ps_per_token2=0, c4_ps_per_token2=0,
    merge_ps_per_byte=100,
)  # fmt: skip
WEIGHTS = st.integers(0, 2_000)


def drawn(seed: int, held_up: list[int]) -> QuoteTable:
    table = COST.quote(random_input(seed))
    assume(len(table))
    return replace(table, held_up_requests=np.array(held_up, np.int64))


@given(st.integers(0, 10**6), st.lists(st.integers(0, 200), min_size=6, max_size=6), WEIGHTS)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_no_row_has_a_lower_price(seed: int, held_up: list[int], weight: int) -> None:
    """Price by price over plain integers: what is chosen is not above any row; nobody held up is the least TTFT."""
    table = drawn(seed, held_up)
    prices = [
        priced_us(ttft, prefill, held_up[node], weight)
        for ttft, prefill, node in zip(
            table.ttft_us.tolist(), table.prefill_us.tolist(), table.executor.tolist(), strict=True
        )
    ]
    chosen = Cheapest(weigh_delay_permille=weight).select(table)
    assert prices[chosen] == min(prices)
    nobody = replace(table, held_up_requests=np.zeros(6, np.int64))
    assert Cheapest(weigh_delay_permille=weight).select(nobody) == Cheapest(weigh_delay_permille=0).select(table)


def test_a_farther_node_is_taken_where_many_answers_would_wait() -> None:
    """Computing 100 ms beside 4 answers here costs them 400 ms together; there, 50 ms away, nobody waits.

    At a weight of .3 that is a price of 220 against 150 ms; at 0.1, 140 against 150.
    """
    here = {"action": Action.RECOMPUTE, "executor": 0, "prefill_us": 100_000}
    there = here | {"executor": 1, "route_us": 50_000}
    table = replace(table_of([here, there]), held_up_requests=np.array([4, 0]))
    assert [Cheapest(weigh_delay_permille=w).select(table) for w in (0, 100, 300, 1_000)] == [0, 0, 1, 1]


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ConfigError, match="`weigh_delay_permille` is `-1`"):
        Cheapest(weigh_delay_permille=-1)
