"""A request that this fleet cannot be asked is refused in one line before it reaches a router, whoever made it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from experiments.fleet import Prompt, arrivals_of, play, setting
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Status
from kvshare_research.study.simulated import Fleet, build_fleet

NODES = 3


def fleet() -> Fleet:
    run = setting("engine=tiny", "driver.pool_tokens=20000", f"driver.node_count={NODES}")
    return build_fleet(run, dict(run.resolved))


def asked(count: int) -> list[Prompt]:
    return [Prompt(arrival_us=i, blocks=[1, i], input_tokens=30, ingress=0) for i in range(count)]


@pytest.mark.parametrize("node", [NODES, 1 << 40, -1])
@pytest.mark.parametrize("name", ["ingress", "executor"])
def test_a_node_beyond_the_fleet_is_refused_by_name(name: str, node: int) -> None:
    one = fleet()
    rows = list(arrivals_of(one, asked(2)))
    wrong = [rows[0], (replace(rows[1][0], **{name: node}), rows[1][1])]
    with pytest.raises(ConfigError, match=rf"request 1: `{name}` is `{node}`, expected a node of the fleet, 0 to 2$"):
        one.ask(wrong)
    assert one.simulator.injected == 1


def test_an_id_that_is_there_twice_is_refused() -> None:
    one = fleet()
    rows = list(arrivals_of(one, asked(3)))
    with pytest.raises(ConfigError, match="request id `1` is used twice"):
        one.ask([*rows, (replace(rows[1][0], arrival_us=9), rows[1][1])])


def test_what_is_in_order_is_served() -> None:
    run = setting("engine=tiny", "driver.pool_tokens=20000", f"driver.node_count={NODES}")
    outcomes, _ = play(run, asked(5))
    assert [o.status for o in outcomes] == [Status.DONE] * 5
