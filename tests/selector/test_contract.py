"""What holds of every selector: each file in conf/selector is picked up, on tables from real quotes."""

from __future__ import annotations

import pickle
import random
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
from hydra.utils import instantiate
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from omegaconf import OmegaConf

from kvshare_research.core.nouns import COLUMNS, NO_NODE, Action, QuoteTable
from kvshare_research.core.ports import Selector
from kvshare_research.cost.ttft import TtftCost
from kvshare_research.testing.tables import quote_input, random_input, reordered

CONF = Path(__file__).parents[2] / "conf"
NAMES = [path.stem for path in sorted((CONF / "selector").glob("*.yaml"))]
COST: TtftCost = instantiate(OmegaConf.load(CONF / "cost" / "ttft.yaml"))
SEEDS = st.integers(0, 10**9)


def load(name: str) -> Selector:
    selector: Selector = instantiate(OmegaConf.load(CONF / "selector" / f"{name}.yaml"))
    return selector


def line(table: QuoteTable, row: int) -> tuple[int, ...]:
    return tuple(int(getattr(table, name)[row]) for name in COLUMNS)


def drawn(seed: int) -> QuoteTable:
    table = COST.quote(random_input(seed))
    assume(len(table) > 0)
    return table


def test_the_expected_ones_are_there() -> None:
    published = {"gorgo", "mooncake", "note_threshold", "route_to_longest_prefix", "least_loaded", "recompute_always"}
    assert published | {"cheapest"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_documented_frozen_value(name: str) -> None:
    selector = load(name)
    assert Selector in type(selector).__mro__
    assert type(selector).__doc__
    assert "changes nothing" in (type(selector).__doc__ or "").replace("Changes", "changes")
    assert type(selector).select.__doc__
    assert pickle.loads(pickle.dumps(selector)) == selector == load(name)
    assert hash(selector) == hash(load(name))
    for field in fields(selector):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(selector, field.name, None)


@pytest.mark.parametrize("name", NAMES)
@given(seed=SEEDS)
@settings(max_examples=80, deadline=None)
def test_it_picks_a_row_on_a_live_node_and_repeats_itself(name: str, seed: int) -> None:
    given_input = random_input(seed)
    table = COST.quote(given_input)
    assume(len(table) > 0)
    row = load(name).select(table)
    assert isinstance(row, int)
    assert 0 <= row < len(table)
    assert table.executor[row] != NO_NODE
    assert table.executor[row] in [load.node for load in given_input.loads if load.alive]
    assert table.action[row] in given_input.actions | {Action.RECOMPUTE}
    assert load(name).select(table) == row


@pytest.mark.parametrize("name", NAMES)
@given(seed=SEEDS)
@settings(max_examples=80, deadline=None)
def test_the_order_of_rows_does_not_matter(name: str, seed: int) -> None:
    table = drawn(seed)
    order = list(range(len(table)))
    random.Random(seed).shuffle(order)
    mixed = reordered(table, order)
    assert line(table, load(name).select(table)) == line(mixed, load(name).select(mixed))


@pytest.mark.parametrize("name", NAMES)
@given(seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_it_leaves_the_table_alone(name: str, seed: int) -> None:
    table = drawn(seed)
    before = [line(table, i) for i in range(len(table))]
    table.cells.setflags(write=False)
    load(name).select(table)
    assert before == [line(table, i) for i in range(len(table))]


@pytest.mark.parametrize("name", NAMES)
@given(seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_a_dead_node_is_never_chosen(name: str, seed: int) -> None:
    """Whatever it chooses, when that node dies it chooses another."""
    given_input = replace(random_input(seed), request=replace(random_input(seed).request, executor=None))
    table = COST.quote(given_input)
    assume(len(set(table.executor.tolist())) > 1)
    chosen = int(table.executor[load(name).select(table)])
    dead = replace(given_input, loads=tuple(replace(x, alive=x.alive and x.node != chosen) for x in given_input.loads))
    after = COST.quote(dead)
    assert after.executor[load(name).select(after)] != chosen
    assert all(piece.source != chosen for piece in after.pieces[load(name).select(after)])


@pytest.mark.parametrize("name", NAMES)
def test_with_nothing_but_computing_allowed_it_computes(name: str) -> None:
    table = COST.quote(quote_input(depths={0: 20, 1: 40}, actions=[Action.RECOMPUTE]))
    assert table.action[load(name).select(table)] == Action.RECOMPUTE


@given(SEEDS)
@settings(max_examples=150, deadline=None)
def test_cheapest_is_never_beaten(seed: int) -> None:
    table = drawn(seed)
    least = table.ttft_us[load("cheapest").select(table)]
    assert least == table.ttft_us.min()
    assert all(least <= table.ttft_us[load(name).select(table)] for name in NAMES)


def promised(name: str) -> int | None:
    return load(name).now(load(name).initial_state()).least_at_permille


@pytest.mark.parametrize("name", [name for name in NAMES if promised(name) is not None])
@given(seed=SEEDS, held_up=st.lists(st.integers(0, 3), min_size=6, max_size=6))
@settings(max_examples=80, deadline=None)
def test_who_promises_the_row_of_least_price_takes_it(name: str, seed: int, held_up: list[int]) -> None:
    given_input, selector = random_input(seed), load(name).now(load(name).initial_state())
    loads = tuple(replace(x, held_up_requests=count) for x, count in zip(given_input.loads, held_up, strict=False))
    given_input = replace(given_input, loads=loads)
    table, alone = COST.quote(given_input), COST.quote(replace(given_input, least_at_permille=promised(name)))
    assert len(alone) <= 1
    assert len(table) == 0 or line(table, selector.select(table)) == line(alone, selector.select(alone))


def test_every_way_is_somebodys_choice() -> None:
    """Over a few hundred drawn situations `cheapest` takes each of the six ways, or a way is dead code."""
    taken = {
        int(t.action[load("cheapest").select(t)]) for t in map(COST.quote, map(random_input, range(400))) if len(t)
    }
    assert taken == set(map(int, Action)), sorted(Action(a).name for a in set(map(int, Action)) - taken)
