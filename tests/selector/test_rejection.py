"""Mooncake's early rejection and hot-spot replication: by hand, and in a fleet whose requests are all accounted for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from kvshare_research.core.choosing import Choosing
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Action, Status
from kvshare_research.core.ports import UnderWay
from kvshare_research.selector.mooncake import Mooncake
from kvshare_research.selector.rejection import EarlyRejection, decoding_at
from tests.core.fleet import ask, fleet

from .test_golden import TABLE

# A step over n requests takes 20 + 20 n ms against an objective of 100 ms: four may decode.
RULE = EarlyRejection(
    mode="early", ttft_objective_us=1_000_000, tbt_objective_us=100_000, step_us=20_000, request_us=20_000
)
HOLDER = 6  # the row of TABLE that Mooncake takes: node 2, first token after 534 ms


def refusal(mode: str, under_way: list[UnderWay], *, decode_us: int = 0, now_us: int = 0, **changes: int) -> str:
    selector = Mooncake(rejection=replace(RULE, mode=mode, **changes))  # type: ignore[arg-type]
    return selector.refuses(structs.replace(TABLE, decode_us=decode_us), HOLDER, under_way, now_us)


def test_mooncake_takes_the_holder() -> None:
    assert Mooncake().select(TABLE) == HOLDER
    assert TABLE.ttft_us[HOLDER] == 534_000


def test_a_first_token_after_its_objective_is_turned_away() -> None:
    for mode in ("early", "predicted"):
        assert refusal(mode, []) == ""
        assert refusal(mode, [], ttft_objective_us=534_000) == ""
        assert "first token" in refusal(mode, [], ttft_objective_us=533_999)
    assert refusal("none", [], ttft_objective_us=1) == ""


def test_early_counts_what_decodes_now_on_that_node() -> None:
    four = [UnderWay(2, 5, 5)] * 4  # this request would be the fifth
    assert "present decode load" in refusal("early", four, now_us=10)
    assert refusal("early", four[:3], now_us=10) == ""
    assert refusal("early", [row._replace(node=1) for row in four], now_us=10) == ""
    assert refusal("early", [row._replace(first_token_us=None) for row in four], now_us=10) == ""


def test_prediction_counts_what_will_decode_when_the_prefill_ends() -> None:
    """Now is 0, the prefill ends at 534 ms, an answer takes 600 ms: those since -66 ms or before are gone, prefills
    that end by then have come."""
    gone, staying = UnderWay(2, -66_000, 0), UnderWay(2, -65_999, 0)
    coming, late = UnderWay(2, None, 534_000), UnderWay(2, None, 534_001)
    assert refusal("predicted", [gone] * 9, decode_us=600_000) == ""
    assert "predicted decode load" in refusal("predicted", [staying] * 4, decode_us=600_000)
    assert "predicted decode load" in refusal("predicted", [coming] * 4, decode_us=600_000)
    assert refusal("predicted", [late] * 9, decode_us=600_000) == ""
    assert refusal("predicted", [staying, coming, coming], decode_us=600_000) == ""
    assert decoding_at(10, [0, 5, 6], [10, 11, 4, 5], 5) == 2  # since 6, and the prefill that ended at 10


def test_how_long_answers_decode_is_learned_from_those_that_ended() -> None:
    """The first counts whole, then a fiftieth of the difference; only prediction asks. With 600 ms, those since -66 ms
    are gone by 534 ms; with the 1,000 ms that this request's own would take alone they are not."""
    selector = Mooncake(rejection=replace(RULE, mode="predicted"))
    state = selector.ended(selector.ended(selector.initial_state(), 550_000), 3_050_000)
    assert state == 600_000
    assert selector.learns
    assert not Mooncake(rejection=RULE).learns
    assert not Mooncake().may_refuse
    table, gone = structs.replace(TABLE, decode_us=1_000_000), [UnderWay(2, -66_000, 0)] * 4
    assert "predicted decode load" in selector.now(selector.initial_state()).refuses(table, HOLDER, gone, 0)
    assert selector.now(state).refuses(table, HOLDER, gone, 0) == ""


def test_a_router_learns_it() -> None:
    sim = fleet()
    sim.router.choosing = Choosing(Mooncake(rejection=replace(RULE, mode="predicted", ttft_objective_us=10**9)))
    ask(sim, 0)
    (outcome,) = sim.run()
    assert sim.router.choosing.state == outcome.decode_us > 0


def test_an_objective_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="objective"):
        EarlyRejection(ttft_objective_us=0)


@pytest.mark.parametrize("mode", ["none", "early", "predicted"])
def test_every_request_of_an_overloaded_fleet_is_accounted_for(mode: str) -> None:
    """Sixty prompts at once, 0.4 s each, on two nodes: most miss an objective of 2 s. injected = done + rejected + in flight
    after every event that the clock stops at."""
    sim = fleet()
    sim.router.choosing = Choosing(Mooncake(rejection=replace(RULE, mode=mode, ttft_objective_us=2_000_000)))  # type: ignore[arg-type]
    for number in range(60):
        ask(sim, number, prefix=f"p{number}", at_us=1 + number * 10_000)
    for until_us in range(0, 10_000_000, 250_000):
        outcomes = sim.run(until_us)
        assert sim.injected == len(outcomes) + sim.router.in_flight
    outcomes = sim.run()
    assert sim.router.in_flight == 0
    assert sorted(o.request_id for o in outcomes) == list(range(60))
    rejected = [o for o in outcomes if o.status == Status.REJECTED]
    assert {o.reason for o in rejected} <= {"early rejection: first token predicted after its objective"}
    assert all(o.end_to_end_us == 0 for o in rejected)
    served_late = [o for o in outcomes if o.status == Status.DONE and o.ttft_us > 2_000_000]
    if mode == "none":
        assert rejected == []
        assert len(served_late) > 20
    else:
        assert len(rejected) > 20
        assert len(served_late) <= 2, "who is let in is answered in time, but for what a quote is off"


def test_a_hot_prefix_is_replicated_to_where_it_is_wanted() -> None:
    """One prefix asked for again and again while its holder is busy: pulls make holders of all nodes. Without pulls
    the others have to compute it."""
    pulled = {}
    for actions in (tuple(Action), (Action.RECOMPUTE, Action.RESIDENT, Action.ROUTE)):
        sim = fleet(nodes=4, actions=actions)
        sim.router.choosing = Choosing(Mooncake())
        ask(sim, 0, prefix_blocks=24)
        sim.run()
        for number in range(1, 12):
            ask(sim, number, prefix_blocks=24, at_us=sim.now_us + 1 + number)
        outcomes = sim.run()
        pulled[actions] = sum(o.pulled_tokens for o in outcomes)
        first = {b.block_hash for b in sim.workers[0].ledger.named()}
        shared = set.intersection(*({b.block_hash for b in w.ledger.named()} for w in sim.workers)) & first
        if Action.PULL in actions:
            assert len(shared) >= 24
            assert sum(o.computed_tokens > 24 * 16 for o in outcomes) == 1, "it was computed once"
    assert pulled[tuple(Action)] > 0
    assert pulled[Action.RECOMPUTE, Action.RESIDENT, Action.ROUTE] == 0
