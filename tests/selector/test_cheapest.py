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
from kvshare_research.selector.cheapest_balanced import CheapestBalanced
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


def test_the_balanced_weight_is_what_lessens_both_means_in_proportion() -> None:
    """First tokens after 1 s and answers 2 s later: T / (T + E) = 1 / 4, so the table above costs 200 here, 150 there.

    Before any answer only the first token counts. Where nothing is decoded both means are one, and the weight is a half.
    """
    selector = CheapestBalanced()
    state = selector.initial_state()
    here = {"action": Action.RECOMPUTE, "executor": 0, "prefill_us": 100_000}
    there = here | {"executor": 1, "route_us": 50_000}
    table = replace(table_of([here, there]), held_up_requests=np.array([4, 0]))
    assert selector.select(table) == selector.now(state).select(table) == 0
    for _ in range(3):
        state = selector.ended(selector.answered(state, 1_000_000), 2_000_000)
    assert state.weigh_delay_permille == 250
    assert selector.now(state).select(table) == 1
    assert selector.answered(selector.initial_state(), 7).weigh_delay_permille == 500


def test_the_balanced_weight_forgets() -> None:
    """After many answers of another kind it is theirs; with a window of one, after one."""
    for window, count in ((1, 1), (16, 500)):
        selector = CheapestBalanced(window_requests=window)
        state = selector.ended(selector.answered(selector.initial_state(), 9_000_000), 0)
        for _ in range(count):
            state = selector.ended(selector.answered(state, 1_000_000), 8_000_000)
        assert state.weigh_delay_permille == pytest.approx(100, abs=1)
    with pytest.raises(ConfigError, match="`window_requests` is `0`"):
        CheapestBalanced(window_requests=0)
