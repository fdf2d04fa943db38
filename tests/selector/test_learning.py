"""Online GORGO: its weights are a function of the answers so far, step by step as published."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest

from kvshare_research.core.choosing import Choosing
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Status
from kvshare_research.selector.gorgo import Gorgo
from kvshare_research.selector.gorgo_online import Climbing, GorgoOnline
from kvshare_research.selector.mooncake import Mooncake
from kvshare_research.selector.rejection import EarlyRejection
from tests.core.fleet import ask, fleet

from .test_golden import TABLE


def after(selector: GorgoOnline, ttft_us: list[int]) -> Climbing:
    state = selector.initial_state()
    for value in ttft_us:
        state = selector.answered(state, value)
    return state


def test_the_published_number_of_steps() -> None:
    """A step when 128 answers have come and every 32 from then on: the 18th after 672."""
    assert [after(GorgoOnline(), [1_000_000] * n).step for n in (127, 128, 159, 160, 671, 672)] == [0, 1, 1, 2, 17, 18]


def test_a_step_by_hand() -> None:
    """Windows of one: the start scores -1.547 s, so x' = exp(ln x + .5 N) within the box is tried; it scores -1.548."""
    noise = np.random.default_rng((0, 0)).standard_normal(2)
    weights = [min(2.0, max(0.05, 0.5 * exp(0.5 * noise[0]))), min(0.5, max(0.05, 0.1 * exp(0.5 * noise[1])))]
    for accept, stands in (("published", weights), ("repaired", [0.5, 0.1])):
        selector = GorgoOnline(window_requests=1, hop_requests=1, accept=accept)
        first = after(selector, [1_547_000])
        assert np.exp(first.trial) == pytest.approx(weights)
        assert selector.now(first).select(TABLE) == Gorgo(rtt_weight=weights[0], queue_weight=weights[1]).select(TABLE)
        second = after(selector, [1_547_000, 1_548_000])
        assert second.climb is not None
        assert np.exp(second.climb.at) == pytest.approx(stands)
        third = after(selector, [1_547_000, 1_548_000, 1_000_000])  # an improvement, by either rule
        assert third.climb is not None
        assert third.climb.at == second.trial
        assert third.climb.best == -1.0


def test_the_score_is_the_p95_of_the_window_and_of_nothing_before() -> None:
    state = after(GorgoOnline(window_requests=4, hop_requests=2), [9_000_000, 9_000_000, 1_000_000, 1_000_000])
    assert state.climb is not None
    assert state.climb.best == -9.0
    state = after(GorgoOnline(window_requests=4, hop_requests=2), [9_000_000] * 2 + [1_000_000] * 4)
    assert state.climb is not None
    assert state.climb.best == -1.0


def test_weights_stay_in_the_box_and_differ_by_seed() -> None:
    chance = np.random.default_rng(1)
    answers = chance.integers(10**5, 10**6, 600).tolist()
    ends = set()
    for seed in range(3):
        selector = GorgoOnline(window_requests=8, hop_requests=2, seed=seed)
        state = selector.initial_state()
        for value in answers:
            state = selector.answered(state, value)
            rtt, queue = np.exp(state.trial)
            assert 0.05 - 1e-12 <= rtt <= 2 + 1e-12
            assert 0.05 - 1e-12 <= queue <= 0.5 + 1e-12
        assert state == after(selector, answers)
        ends.add(state.trial)
    assert len(ends) == 3


def test_weights_outside_the_box_are_refused() -> None:
    with pytest.raises(ConfigError, match="`queue_weight` is 3"):
        GorgoOnline(queue_weight=3)
    with pytest.raises(ConfigError, match="`hop_requests`"):
        GorgoOnline(hop_requests=0)


def test_a_router_learns_from_first_tokens_and_a_second_run_learns_alike() -> None:
    """Twelve requests: the first step after four answers, then every two; equal events give equal states."""
    states = []
    for _ in range(2):
        sim = fleet(nodes=3)
        sim.router.choosing = Choosing(GorgoOnline(window_requests=4, hop_requests=2))
        for number in range(12):
            ask(
                sim,
                number,
                tenant=1 + number % 2,
                prefix=f"p{number % 3}",
                at_us=1 + number * 200_000,
                ingress=number % 3,
            )
        sim.run()
        states.append(sim.router.choosing.state)
    assert states[0].step == 1 + (12 - 4) // 2
    assert states[0] == states[1]


def test_replaying_the_events_of_a_router_that_learns_and_refuses_gives_the_same_effects() -> None:
    """State is a function of events alone: a fresh router told the same decides the same."""
    rule = EarlyRejection(mode="predicted", ttft_objective_us=400_000)
    for selector in (GorgoOnline(window_requests=4, hop_requests=1), Mooncake(rejection=rule)):
        sim, told = fleet(nodes=3), []
        sim.router.choosing = Choosing(selector)
        handle = sim.router.handle

        def recorded(event, now_us, handle=handle, told=told):
            effects = handle(event, now_us)
            told.append((event, now_us, effects))
            return effects

        sim.router.handle = recorded  # type: ignore[method-assign]
        for number in range(20):
            ask(sim, number, prefix=f"p{number % 4}", at_us=1 + number * 30_000, ingress=number % 3)
        outcomes = sim.run()
        fresh = fleet(nodes=3).router
        fresh.choosing = Choosing(selector)
        assert [fresh.handle(event, now_us) for event, now_us, _ in told] == [effects for _, _, effects in told]
        assert fresh.choosing.state == sim.router.choosing.state != selector.initial_state()
        assert isinstance(selector, GorgoOnline) or any(o.status == Status.REJECTED for o in outcomes)
