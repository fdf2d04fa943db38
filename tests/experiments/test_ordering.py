"""The verdict on Mooncake's order takes the seed that speaks most against it."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from msgspec import structs

from experiments.mooncake_ordering.verdict import quantities
from kvshare_research.metrics.records import CaseResult
from tests.metrics.synthetic import make_case


def case(block: str, selector: str, seed: int, times: int) -> CaseResult:
    """A case whose TTFT are so many times those of the synthetic one."""
    made = replace(make_case("cheapest", seed=seed, count=20), selector=selector, extra=(("block", block),))
    outcomes = tuple(structs.replace(o, ttft_us=o.ttft_us * times) for o in made.outcomes)
    return replace(made, outcomes=outcomes)


def test_an_order_holds_if_it_holds_with_every_seed() -> None:
    times = {("ordering", "mooncake"): 2, ("local", "mooncake"): 4, ("ordering", "least_loaded"): 8}
    rows = [case(*which, seed, factor) for which, factor in times.items() for seed in (0, 1)]
    rows += [case("ordering", "random", 0, 80), case("ordering", "random", 1, 4)]
    found = quantities(rows)
    assert found == {
        "mean TTFT, local cache over global cache": 2,
        "mean TTFT, load balance over local cache": 2,
        "mean TTFT, random over load balance": 0.5,
    }
    assert fmean(o.ttft_us for o in rows[0].done()) > 0
