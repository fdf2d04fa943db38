"""The weighted selector: `cheapest` at equal weights, and each weight moves the choice its own way."""

from __future__ import annotations

import pytest

from kvshare_research.core.errors import ConfigError
from kvshare_research.selector.cheapest import Cheapest
from kvshare_research.selector.weighted import Weighted
from kvshare_research.testing.tables import random_input

from .test_contract import COST

TABLES = [table for table in (COST.quote(random_input(seed)) for seed in range(300)) if len(table)]
EVEN = Weighted(prefill_weight=1.0, request_ms=0.0)


def test_with_even_weights_it_takes_the_least_quoted_time() -> None:
    """The quote is rounded up once and its parts each, so that a microsecond or a few may lie between."""
    for table in TABLES:
        ours, best = (int(table.ttft_us[s.select(table)]) for s in (EVEN, Cheapest()))
        assert best <= ours <= best + 4


def test_a_price_on_prefill_computes_less_and_one_on_company_seeks_the_empty_node() -> None:
    def total(selector: Weighted, column: str) -> int:
        return sum(int(getattr(table, column)[selector.select(table)]) for table in TABLES)

    assert total(Weighted(prefill_weight=5.0, request_ms=0.0), "prefill_us") < total(EVEN, "prefill_us")
    assert total(Weighted(prefill_weight=1.0, request_ms=1e4), "queued_requests") < total(EVEN, "queued_requests")
    assert total(Weighted(prefill_weight=1.0, request_ms=0.0, route_weight=50.0), "route_us") < total(EVEN, "route_us")


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ConfigError, match="`fetch_weight` is -1"):
        Weighted(fetch_weight=-1)
