"""The bound is one: no policy of the simulated fleet serves any request sooner, whatever the fleet."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.fleet import Prompt, play, setting
from kvshare_research.core.costing import PrefillCoefficients, prefill_ps
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Status
from kvshare_research.driver.relaxed import least_prefill_ps
from kvshare_research.study.assembly import check_selector

SIZES = st.integers(0, 40_000)


@given(*[SIZES] * 5, st.integers(1, 5_000), st.floats(0, 1), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_no_way_to_cut_a_prefill_is_quicker(
    c0: int, c1: int, c2: int, c3: int, c4: int, tokens: int, share: float, chance: random.Random
) -> None:
    """Any pieces, from any depth up to the cached one."""
    rates = PrefillCoefficients(c0, c1, c2, c3, c4)
    cached = int(share * (tokens - 1))
    at, total = chance.randint(0, cached), 0
    while at < tokens:
        end = chance.choice([tokens, chance.randint(at + 1, tokens), min(tokens, at + 16)])
        total += prefill_ps(rates, end - at, at)
        at = end
    assert least_prefill_ps(rates, tokens, cached) <= total


def prompts(seed: int) -> list[Prompt]:
    """Talks that come back, many at once, on any node."""
    chance, made, now_us = random.Random(seed), [], 0
    for number in range(60):
        now_us += chance.choice([0, 0, chance.randrange(400_000)])
        talk, depth = chance.randrange(5), chance.randint(1, 40)
        blocks = [1 + talk * 100 + i for i in range(depth)] + [10_000 + number]
        made.append(
            Prompt(
                arrival_us=now_us, blocks=blocks, input_tokens=len(blocks) * 512 - chance.randrange(512),
                output_tokens=chance.choice([1, 2, 30]), ingress=chance.randrange(3),
            )
        )  # fmt: skip
    return made


@pytest.mark.parametrize(
    "selector", ["cheapest", "mooncake", "least_request", "route_to_longest_prefix", "pull_always"]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_request_of_a_fleet_is_served_sooner(selector: str, seed: int) -> None:
    """The default engine computes long prompts in chunks, which is quicker than at once; another link, another seed."""
    run = setting("driver.node_count=3", "driver.block_tokens=512", "link=nvlink" if seed else "link=eth_25g")
    given = prompts(seed)
    real, _ = play(run, given, selector)
    bound, relaxed = play(run, given, "bound")
    assert len(real) == len(bound) == relaxed.injected == len(given)
    for one, least in zip(real, bound, strict=True):
        assert one.status == least.status == Status.DONE
        assert least.ttft_us <= one.ttft_us
        assert least.end_to_end_us <= one.end_to_end_us
    assert relaxed.moved_bytes == 0


def test_a_request_alone_meets_it() -> None:
    """One prompt, one chunk, its client beside it: the bound is what it takes; decoding is rounded up apart."""
    run = setting("driver.node_count=1", "driver.block_tokens=512", "driver.prefill.c4_ps_per_token2=1275")
    given = [Prompt(arrival_us=i * 10**8, blocks=range(8), input_tokens=4_000, output_tokens=5) for i in range(2)]
    real, bound = play(run, given, "cheapest")[0], play(run, given, "bound")[0]
    assert [o.ttft_us for o in real] == [o.ttft_us for o in bound]
    assert all(0 <= a.end_to_end_us - b.end_to_end_us <= 1 for a, b in zip(real, bound, strict=True))
    assert bound[1].computed_tokens == 4_000 - 7 * 512


def test_a_bound_routes_no_ranks_and_knows_nothing_disclosed() -> None:
    with pytest.raises(ConfigError, match="driver=simulator"):
        check_selector(setting("selector=bound").resolved)
    with pytest.raises(ConfigError, match="what is disclosed"):
        play(setting("selector=bound", "disclosure=after_k"), [])
