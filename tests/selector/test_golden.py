"""One decision per selector, computed by hand from its published rule, on tables small enough to read."""

from __future__ import annotations

import pytest

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Action
from kvshare_research.selector.cheapest import Cheapest
from kvshare_research.selector.gorgo import Gorgo
from kvshare_research.selector.least_loaded import LeastLoaded
from kvshare_research.selector.mooncake import Mooncake
from kvshare_research.selector.note_threshold import NoteThreshold
from kvshare_research.selector.pull_always import PullAlways
from kvshare_research.selector.recompute_always import RecomputeAlways
from kvshare_research.selector.route_to_longest_prefix import RouteToLongestPrefix
from kvshare_research.testing.tables import table_of

RECOMPUTE, RESIDENT, ROUTE, PULL = Action.RECOMPUTE, Action.RESIDENT, Action.ROUTE, Action.PULL

# 1,024 tokens, 1 ms each. Node 0 is the ingress, busy, holds 8 blocks; node 1 idle and empty, 10 ms away; node 2,
# 100 ms away, little queue, holds 40 blocks. Pulling 40 blocks costs 100 ms.
BUSY = {"executor": 0, "queue_us": 300_000, "queued_tokens": 300, "queued_requests": 1}
IDLE = {"executor": 1, "route_us": 10_000, "rtt_us": 10_000}
FAR = {"executor": 2, "route_us": 100_000, "rtt_us": 100_000, "queue_us": 50_000, "queued_tokens": 50}
ROWS = [
    BUSY | {"action": RECOMPUTE, "prefill_us": 1_024_000, "uncached_tokens": 1024},
    BUSY | {"action": RESIDENT, "prefill_us": 896_000, "uncached_tokens": 896, "resident_blocks": 8},
    BUSY
    | {"action": PULL, "source": 2, "prefill_us": 384_000, "uncached_tokens": 384, "resident_blocks": 8}
    | {"pulled_blocks": 32, "fetch_us": 90_000, "transfer_bytes": 32},
    IDLE | {"action": RECOMPUTE, "prefill_us": 1_024_000, "uncached_tokens": 1024},
    IDLE
    | {"action": PULL, "source": 2, "prefill_us": 384_000, "uncached_tokens": 384}
    | {"pulled_blocks": 40, "fetch_us": 100_000, "transfer_bytes": 40},
    FAR | {"action": RECOMPUTE, "prefill_us": 1_024_000, "uncached_tokens": 1024},
    FAR | {"action": ROUTE, "prefill_us": 384_000, "uncached_tokens": 384, "resident_blocks": 40},
]
TABLE = table_of(ROWS)
WITHOUT_PULL = table_of([row for row in ROWS if row["action"] != PULL])


def test_recompute_always_computes_on_the_idle_node() -> None:
    assert RecomputeAlways().select(TABLE) == 3


def test_pull_always_pulls_at_any_price() -> None:
    """Node 1 is idle; the deepest holder is node 2, although the fetch takes 100 ms. Without a pull it computes there."""
    dear = table_of([row | {"fetch_us": 9_000_000} if row["action"] == PULL else row for row in ROWS])
    assert PullAlways().select(TABLE) == PullAlways().select(dear) == 4
    assert PullAlways().select(WITHOUT_PULL) == 2


def test_least_loaded_takes_the_idle_node_as_it_is() -> None:
    assert LeastLoaded().select(TABLE) == 3


def test_least_loaded_uses_what_the_node_has() -> None:
    alone = table_of([row for row in ROWS if row["executor"] == 0])
    assert LeastLoaded().select(alone) == 1


def test_equal_loads_go_to_the_nearest_node_then_the_lowest() -> None:
    rows = [
        {"action": RECOMPUTE, "executor": 0, "rtt_us": 9, "prefill_us": 5},
        {"action": RECOMPUTE, "executor": 1, "rtt_us": 0, "prefill_us": 5},
        {"action": RECOMPUTE, "executor": 2, "rtt_us": 0, "prefill_us": 5},
    ]
    assert RecomputeAlways().select(table_of(rows)) == 1


def test_waiting_tokens_come_before_waiting_requests_and_those_before_distance() -> None:
    long, short = {"queued_tokens": 900, "queued_requests": 1}, {"queued_tokens": 80, "queued_requests": 4}
    rows = [{"action": RECOMPUTE, "executor": 0} | long, {"action": RECOMPUTE, "executor": 1, "rtt_us": 9} | short]
    assert LeastLoaded().select(table_of(rows)) == 1
    rows[0]["queued_tokens"] = 80
    assert LeastLoaded().select(table_of(rows)) == 0


def test_route_to_longest_prefix_goes_far() -> None:
    assert RouteToLongestPrefix().select(TABLE) == 6


def test_route_to_longest_prefix_without_holders_computes_where_it_is_quiet() -> None:
    assert RouteToLongestPrefix().select(table_of([r for r in ROWS if r["action"] == RECOMPUTE])) == 1


@pytest.mark.parametrize(("fetch_us", "row"), [(639_999, 4), (640_000, 3)])
def test_note_threshold_pulls_iff_strictly_quicker_than_computing_the_same_640_tokens(fetch_us: int, row: int) -> None:
    rows = list(ROWS)
    rows[4] = rows[4] | {"fetch_us": fetch_us}
    assert NoteThreshold().select(table_of(rows)) == row


def test_note_threshold_asks_the_longest_holder_even_if_a_shorter_one_is_quicker() -> None:
    shorter = ROWS[4] | {"source": 0, "pulled_blocks": 39, "uncached_tokens": 400, "fetch_us": 1, "prefill_us": 400_000}
    assert NoteThreshold().select(table_of([*ROWS, shorter])) == 4


def test_note_threshold_without_a_way_to_pull_serves_with_what_there_is() -> None:
    assert NoteThreshold().select(WITHOUT_PULL) == 2


def test_gorgo_scores() -> None:
    """.276 RTT + uncached + .5 queued: node 0 896 + 150, node 1 2.76 + 1,024, node 2 27.6 + 384 + 25 = 436.6."""
    assert Gorgo().select(TABLE) == 6
    # Node 2 scores 100 w + 409 and ties with node 0 at w = 6.37.
    assert Gorgo(rtt_weight=6.36).select(TABLE) == 6
    assert Gorgo(rtt_weight=6.38).select(TABLE) == 1
    # Without node 2: node 1 scores 10 w + 1,024 and ties with node 0 at w = 2.2.
    near = table_of([row for row in ROWS if row["executor"] != 2])
    assert Gorgo(rtt_weight=2.1).select(near) == 3
    assert Gorgo(rtt_weight=2.3).select(near) == 1


def test_gorgo_never_moves_bytes_and_refuses_negative_weights() -> None:
    assert Gorgo(rtt_weight=0, queue_weight=0).select(TABLE) == 6
    with pytest.raises(ConfigError):
        Gorgo(queue_weight=-1)


def test_mooncake_algorithm_1() -> None:
    """Longest run 40. Node 0: 40 > 2 * 8, so 90 + 300 + 384 = 774; node 1: 100 + 384 = 484; node 2: 50 + 384 = 434."""
    assert Mooncake().select(TABLE) == 6
    rows = list(ROWS)
    rows[6] = rows[6] | {"queue_us": 100_001}  # 484.001 now
    assert Mooncake().select(table_of(rows)) == 4


def test_mooncake_transfers_only_past_its_threshold() -> None:
    """With threshold 6, 40 <= 6 * 8: node 0 is priced with its own run, 300 + 896; alone it stays RESIDENT."""
    alone = table_of([row for row in ROWS if row["executor"] == 0])
    assert Mooncake(balancing_threshold=4.9).select(alone) == 2
    assert Mooncake(balancing_threshold=5).select(alone) == 1  # 40 = 5 * 8 is not past it
    with pytest.raises(ConfigError):
        Mooncake(balancing_threshold=0.5)


def test_mooncake_without_pull_prices_what_each_node_has() -> None:
    assert Mooncake().select(WITHOUT_PULL) == 4


def test_cheapest_takes_the_least_sum() -> None:
    """Row sums in ms: 1324, 1196, 774, 1034, 494, 1174, 534."""
    assert TABLE.ttft_us.tolist() == [1_324_000, 1_196_000, 774_000, 1_034_000, 494_000, 1_174_000, 534_000]
    assert Cheapest().select(TABLE) == 4


def test_cheapest_ties_go_to_fewer_bytes_then_the_simpler_way() -> None:
    tie = [
        {"action": PULL, "executor": 0, "source": 1, "pulled_blocks": 1, "transfer_bytes": 9, "prefill_us": 7},
        {"action": ROUTE, "executor": 1, "resident_blocks": 1, "prefill_us": 7},
        {"action": RECOMPUTE, "executor": 3, "prefill_us": 7},
        {"action": RECOMPUTE, "executor": 2, "prefill_us": 7},
    ]
    assert Cheapest().select(table_of(tie)) == 3
    assert Cheapest().select(table_of(tie[:2])) == 1
