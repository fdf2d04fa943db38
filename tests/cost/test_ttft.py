"""The quote: hand-computed rows, what must hold of any table, and the compiled loop against the plain one."""

from __future__ import annotations

import hashlib
import inspect
import pickle
import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from omegaconf import OmegaConf

from kvshare_research.core import costing, splitting
from kvshare_research.core.costing import fetch_ps, prefill_ps, setup_ps, up_to_us
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.loads import HELD_UP_REQUESTS
from kvshare_research.core.nouns import COLUMNS, NO_NODE, Action, LinkRow, QuoteTable, Run
from kvshare_research.core.ports import QuoteInput
from kvshare_research.cost import floors, kernel, sheet, ttft
from kvshare_research.cost.links import matrix_of
from kvshare_research.cost.ttft import TtftCost
from kvshare_research.selector.cheapest import Cheapest
from kvshare_research.testing.tables import quote_input, random_input

CONF = Path(__file__).parents[2] / "conf" / "cost"
# 1 ms a token, nothing else: times can be read off.
PLAIN = TtftCost(
    c0_ps=0, c1_ps_per_token=10**9, c2_ps_per_token=0, c3_ps_per_token2=0, c4_ps_per_token2=0, merge_ps_per_byte=0
)
RICH = TtftCost(
    c0_ps=4 * 10**9,
    c1_ps_per_token=2 * 10**9,
    c2_ps_per_token=10**6,
    c3_ps_per_token2=200_000,
    c4_ps_per_token2=100_000,
    merge_ps_per_byte=150,
    receiver_ps_per_byte=900,
    tier_ps_per_byte=(0, 40, 4_000),
)
SEEDS = st.integers(0, 10**9)


def row(table: QuoteTable, action: Action, executor: int) -> int:
    (found,) = np.flatnonzero((table.action == action) & (table.executor == executor))
    return int(found)


def values(table: QuoteTable, at: int, *names: str) -> tuple[int, ...]:
    return tuple(int(getattr(table, name)[at]) for name in names)


def test_every_way_by_hand() -> None:
    """1,024 tokens in 64 blocks; node 0 (ingress) holds 8, 1 and 2 hold 40. 1 ms a token; 10 ms, 2 ms a block."""
    given = quote_input(
        depths={0: 8, 1: 40, 2: 40}, queued_us=(5_000, 0, 0), rtt_us=10_000, ps_per_byte=2_000_000, block_bytes=1_000
    )
    table = PLAIN.quote(given)
    parts = ("route_us", "queue_us", "fetch_us", "prefill_us", "overlap_us", "merge_us", "ttft_us")
    assert values(table, row(table, Action.RECOMPUTE, 0), *parts) == (0, 5_000, 0, 1_024_000, 0, 0, 1_029_000)
    assert values(table, row(table, Action.RESIDENT, 0), *parts) == (0, 5_000, 0, 896_000, 0, 0, 901_000)
    assert values(table, row(table, Action.ROUTE, 1), *parts) == (10_000, 0, 0, 384_000, 0, 0, 394_000)
    # 32 blocks from one source: 10 + 64 ms; from two, 16 each: 10 + 32 ms. Both run beside the queue of 5 ms.
    assert values(table, row(table, Action.PULL, 0), *parts) == (0, 5_000, 74_000, 384_000, 5_000, 0, 458_000)
    multi = row(table, Action.MULTI_PULL, 0)
    assert values(table, multi, *parts) == (0, 5_000, 42_000, 384_000, 5_000, 0, 426_000)
    assert [(p.start, p.end) for p in table.pieces[multi]] == [(8, 24), (24, 40)]
    # SPLIT: f blocks at 16 ms beside 10 + 2 (32 - f) ms: f = 4 gives 64 and 66, f = 5 gives 80 and 64.
    split = row(table, Action.SPLIT, 0)
    assert values(table, split, "front_blocks", "pulled_blocks", *parts) == (
        4, 28, 0, 5_000, 66_000, 448_000, 66_000, 0, 453_000,
    )  # fmt: skip
    assert [(p.source, p.start, p.end) for p in table.pieces[split]] == [(1, 12, 40)]
    assert table.best_blocks == 40


def test_uneven_holders_share_only_what_both_have() -> None:
    """Node 1 holds 8 blocks, node 2 holds 40, at 1 ms each: node 2 brings the 32 deep ones, node 1 the rest."""
    table = PLAIN.quote(
        quote_input(depths={1: 8, 2: 40}, queued_us=(0, 0, 0), rtt_us=0, ps_per_byte=1_000_000, executor=0)
    )
    multi = row(table, Action.MULTI_PULL, 0)
    assert [(p.source, p.start, p.end) for p in table.pieces[multi]] == [(1, 0, 8), (2, 8, 40)]
    assert values(table, multi, "fetch_us") == (32_000,)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9), st.integers(1, 9)), min_size=2, max_size=3),
    st.integers(0, 2),
)
@settings(max_examples=80, deadline=None)
def test_uneven_holders_are_dealt_as_well_as_can_be(holders: list[tuple[int, int, int]], resident: int) -> None:
    """Every assignment of the pulled blocks to holders that have them, tried one by one: none arrives earlier."""
    count = len(holders) + 1
    links = [[0] * count, *([setup] * count for _, setup, _ in holders)]
    rates = [[1] * count, *([rate * 1_000_000] * count for _, _, rate in holders)]
    given_input = quote_input(
        token_count=100,
        depths={0: resident} | {i + 1: depth for i, (depth, _, _) in enumerate(holders)},
        queued_us=(0,) * count,
        rtt_us=links,
        ps_per_byte=rates,
        block_bytes=1,
        executor=0,
    )
    table = replace(PLAIN, c1_ps_per_token=250_000).quote(given_input)  # 4 us a block, against 1 to 9 for fetching one
    multi = np.flatnonzero(table.action == Action.MULTI_PULL)

    def arrival_us(chosen: tuple[int, ...]) -> int:
        return max(holders[k][1] + holders[k][2] * chosen.count(k) for k in set(chosen))

    totals = []
    for target in {depth for depth, _, _ in holders if depth > resident}:
        able = [[k for k, (depth, _, _) in enumerate(holders) if depth > block] for block in range(resident, target)]
        every = list(product(*able))
        best_us = min(map(arrival_us, every))
        if best_us < min((arrival_us(chosen) for chosen in every if len(set(chosen)) == 1), default=10**9):
            totals.append(best_us + (100 - 16 * target) // 4)
        for i in multi[table.pulled_blocks[multi] == target - resident]:
            assert table.fetch_us[i] == best_us
    assert not totals or (len(multi) and table.ttft_us[multi[0]] <= min(totals))


def test_the_last_token_is_always_computed() -> None:
    table = PLAIN.quote(quote_input(token_count=64, depths={0: 4}))
    assert values(table, row(table, Action.RESIDENT, 0), "resident_blocks", "uncached_tokens") == (3, 16)


def test_only_what_may_be_read_counts() -> None:
    given = quote_input(depths={0: 40, 1: 40})
    table = PLAIN.quote(structs.replace(given, verdict=structs.replace(given.verdict, readable_blocks=5)))
    assert table.resident_blocks.max() == 5 == table.best_blocks


def test_the_deepest_holder_is_quoted_beside_the_best() -> None:
    """Node 2 has ten blocks more, behind a link so slow that node 1 is better; baselines ask for the deepest."""
    slow = [[0, 0, 0], [0, 0, 0], [10**7, 10**7, 0]]
    table = PLAIN.quote(quote_input(depths={1: 30, 2: 40}, queued_us=(0, 0, 0), ps_per_byte=slow, executor=0))
    pulls = table.action == Action.PULL
    assert table.source[pulls].tolist() == [1, 2]
    every = replace(PLAIN, every_source=True)
    many = every.quote(quote_input(depths={1: 30, 2: 40, 3: 20}, queued_us=(0, 0, 0, 0), executor=0))
    assert many.source[many.action == Action.PULL].tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", [p.stem for p in sorted(CONF.glob("*.yaml"))])
def test_every_config_quotes(name: str) -> None:
    cost = instantiate(OmegaConf.load(CONF / f"{name}.yaml"))
    assert len(cost.quote(quote_input(depths={0: 3, 1: 9}))) >= 4
    assert type(cost).__doc__
    assert pickle.loads(pickle.dumps(cost)) == cost
    with pytest.raises(AttributeError):
        cost.c0_ps = 1


@given(SEEDS)
@settings(max_examples=150, deadline=None)
def test_what_holds_of_any_table(seed: int) -> None:
    given_input = random_input(seed)
    for cost in (PLAIN, RICH, replace(RICH, every_source=True)):
        check(cost, given_input, cost.quote(given_input))


def check(cost: TtftCost, given: QuoteInput, table: QuoteTable) -> None:
    request = given.request
    alive = {load.node for load in given.loads if load.alive}
    allowed = alive if request.executor is None else alive & {request.executor}
    assert set(table.executor.tolist()) == allowed
    assert set(table.action.tolist()) <= given.actions | {Action.RECOMPUTE}
    assert [*table.executor[table.action == Action.RECOMPUTE]] == sorted(allowed)
    total = table.route_us + table.queue_us + table.fetch_us + table.prefill_us - table.overlap_us + table.merge_us
    assert np.array_equal(table.ttft_us, total)
    reused = (table.resident_blocks + table.pulled_blocks) * table.block_tokens
    assert np.array_equal(table.uncached_tokens, table.token_count - reused)
    for name in COLUMNS:
        assert getattr(table, name).dtype == np.int64
        assert name == "source" or getattr(table, name).min(initial=0) >= 0
    for i in range(len(table)):
        check_row(cost, given, table, i, alive)


def check_row(cost: TtftCost, given: QuoteInput, table: QuoteTable, i: int, alive: set[int]) -> None:
    action, executor, source = (int(getattr(table, name)[i]) for name in ("action", "executor", "source"))
    resident, front, pulled = values(table, i, "resident_blocks", "front_blocks", "pulled_blocks")
    depth = {node: min(given.verdict.depth(node), (table.token_count - 1) // table.block_tokens) for node in alive}
    assert resident == (0 if action == Action.RECOMPUTE else depth[executor])
    assert (pulled > 0) == (action >= Action.PULL)
    assert (front > 0) == (action == Action.SPLIT)
    assert (action == Action.RESIDENT) <= (executor == given.request.ingress)
    assert (action == Action.ROUTE) <= (executor != given.request.ingress)
    pieces = table.pieces[i]
    assert sum(p.block_count for p in pieces) == pulled
    assert all(a.end == b.start for a, b in pairwise(pieces))
    assert all(p.source in alive - {executor} and p.end <= depth[p.source] for p in pieces)
    if pieces:
        assert pieces[0].start == resident + front
    distinct = {p.source for p in pieces}
    assert (len(distinct) >= 2) == (action == Action.MULTI_PULL)
    assert len(distinct) <= max(1, cost.sources_max)
    assert source == (pieces[0].source if action in (Action.PULL, Action.SPLIT) else NO_NODE)
    cached = (resident + front + pulled) * table.block_tokens
    c, tokens = cost.coefficients, table.block_tokens
    front_us = up_to_us(prefill_ps(c, front * tokens, resident * tokens))
    assert table.prefill_us[i] == front_us + up_to_us(prefill_ps(c, table.token_count - cached, cached))
    assert table.overlap_us[i] == min(table.queue_us[i] + front_us, table.fetch_us[i])
    assert table.fetch_us[i] == slowest_us(cost, given, i, table)


def slowest_us(cost: TtftCost, given: QuoteInput, i: int, table: QuoteTable) -> int:
    """The fetch time of a row from its pieces alone: every source by itself, capped by the receiver."""
    executor, by_source = int(table.executor[i]), {}
    for piece in table.pieces[i]:
        by_source[piece.source] = by_source.get(piece.source, 0) + piece.block_count
    times, setups = [0], []
    for source, blocks in by_source.items():
        link = given.links[source][executor]
        runs = [r for r in given.verdict.runs if r.node == source]
        cap = min(given.verdict.readable_blocks, (table.token_count - 1) // table.block_tokens)
        depth = max(min(r.block_count, cap) for r in runs)
        tier = min(cost.tier_ps_per_byte[r.tier] for r in runs if min(r.block_count, cap) == depth)
        rate = max(link.ps_per_byte_high + tier, cost.receiver_ps_per_byte) * given.block_bytes
        setups.append(setup_ps(link.rtt_high_us, link.inflight_bytes, link.ps_per_byte_high))
        times.append(fetch_ps(setups[-1], blocks, max(1, rate)))
    if len(by_source) > 1:
        total = sum(by_source.values()) * given.block_bytes * cost.receiver_ps_per_byte
        times.append(min(setups) + total)
    return up_to_us(max(times))


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_the_compiled_loop_equals_the_plain_one(seed: int) -> None:
    pytest.importorskip("numba")
    given_input = random_input(seed)
    fast = RICH.quote(given_input)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ttft, "compiled", lambda: kernel.fill_rows)
        plain = RICH.quote(given_input)
    for name in COLUMNS:
        assert np.array_equal(getattr(fast, name), getattr(plain, name)), name
    assert tuple(fast.pieces) == tuple(plain.pieces)


def alike_input(seed: int) -> QuoteInput:
    """Many holders of few depths over links of which most are equal: times tie, and most holders can be left out."""
    given = random_input(seed, 30)
    draw, common = random.Random(seed), LinkRow(rtt_us=1, rtt_high_us=1, ps_per_byte=1, ps_per_byte_high=1)
    blocks = max(1, given.request.token_count // given.chain.block_tokens)
    depths = [draw.randint(1, blocks) for _ in range(draw.choice([1, 3]))]
    runs = tuple(
        Run(node=node, tier=draw.choice([0, 0, 1]), block_count=draw.choice(depths))
        for node in range(len(given.loads))
        if draw.random() < 0.8
    )
    links = tuple(tuple(common if draw.random() < 0.85 else link for link in row) for row in given.links)
    actions = frozenset({*given.actions, Action.PULL})
    return structs.replace(given, verdict=structs.replace(given.verdict, runs=runs), links=links, actions=actions)


@given(SEEDS)
@settings(max_examples=150, deadline=None)
def test_a_holder_that_is_left_out_could_be_neither_the_quickest_nor_the_deepest(seed: int) -> None:
    given_input = alike_input(seed)
    few, all_of_them = RICH.quote(given_input), replace(RICH, every_source=True).quote(given_input)
    expected = []
    for executor in sorted(set(all_of_them.executor.tolist())):
        rows = np.flatnonzero((all_of_them.action == Action.PULL) & (all_of_them.executor == executor)).tolist()
        key = {r: (int(all_of_them.ttft_us[r]), int(all_of_them.source[r])) for r in rows}
        best = min(rows, key=lambda r: key[r], default=None)
        deepest = min(rows, key=lambda r: (-int(all_of_them.pulled_blocks[r]), *key[r]), default=None)
        expected += sorted({best, deepest} - {None}, key=lambda r: key[r][1])
    kept = np.flatnonzero(all_of_them.action != Action.PULL)
    for name in COLUMNS:
        ours, theirs = getattr(few, name), getattr(all_of_them, name)
        assert np.array_equal(ours[few.action == Action.PULL], theirs[np.array(expected, int)]), name
        assert np.array_equal(ours[few.action != Action.PULL], theirs[kept]), name
    others = [pieces for pieces, action in zip(few.pieces, few.action, strict=True) if action != Action.PULL]
    assert others == [all_of_them.pieces[row] for row in kept.tolist()]


@given(SEEDS, st.sampled_from([0, 300, 1000]), st.booleans())
@settings(max_examples=400, deadline=None)
def test_an_executor_that_is_passed_over_had_no_row_of_least_price(seed: int, weigh: int, every_source: bool) -> None:
    """Of the whole table, `cheapest` takes the very row, with the very pieces, that is quoted when only it is wanted."""
    draw = random.Random(seed)
    given_input = draw.choice([random_input, alike_input])(seed)
    even = draw.random() < 0.5  # equal nodes: prices tie
    loads = tuple(
        structs.replace(
            load, held_up_requests=draw.choice([0, 0, 3]), pace_permille=1000 if even else draw.randint(500, 3000),
            queued_work_us=0 if even else load.queued_work_us,
        )
        for load in given_input.loads
    )  # fmt: skip
    given_input = structs.replace(given_input, loads=loads)
    c1_ps = draw.choice([RICH.c1_ps_per_token, 10_000])  # computing a block takes longer, or less long, than merging it
    merge_ps = draw.choice([RICH.merge_ps_per_byte, 20_000])
    cost = replace(RICH, every_source=every_source, c1_ps_per_token=c1_ps, merge_ps_per_byte=merge_ps)
    table, alone = cost.quote(given_input), cost.quote(structs.replace(given_input, least_at_permille=weigh))
    assert len(alone) == min(1, len(table))
    if len(table):
        best = Cheapest(weigh_delay_permille=weigh).select(table)
        assert [values(table, best, name) for name in COLUMNS] == [values(alone, 0, name) for name in COLUMNS]
        assert table.pieces[best] == alone.pieces[0]
        assert table.best_blocks == alone.best_blocks


def test_a_front_that_is_computed_is_not_held_to_the_time_of_merging_it() -> None:
    """Early blocks are computed sooner than merged, late ones not: SPLIT on node 0 is a hair better than node 1."""
    cost = replace(
        PLAIN, c1_ps_per_token=10_000, c3_ps_per_token2=200_000, c4_ps_per_token2=50_000, merge_ps_per_byte=100_000
    )

    def asked(queue_us: int, least_at_permille: int | None) -> QuoteTable:
        given_input = quote_input(
            token_count=512, depths={1: 29, 2: 20}, queued_us=(0, queue_us, 10**6), rtt_us=100, ps_per_byte=10_000
        )
        return cost.quote(structs.replace(given_input, least_at_permille=least_at_permille))

    table = asked(0, None)
    split, route = row(table, Action.SPLIT, 0), row(table, Action.ROUTE, 1)
    ahead_us = int(table.ttft_us[split] - table.ttft_us[route])
    for queue_us, executor in ((ahead_us - 1, 1), (ahead_us + 1, 0)):
        assert asked(queue_us, 0).executor.tolist() == [executor]


PRICED = st.tuples(*[st.integers(0, 2)] * 7)  # TTFT, bytes, action, executor, source, prefill, held up


@given(PRICED, PRICED, st.sampled_from([0, 300, 1000]))
def test_of_two_rows_the_one_of_lower_price_beats_the_other_and_of_equal_ones_the_better(
    one: tuple[int, ...], other: tuple[int, ...], weigh: int
) -> None:
    out, nodes = np.zeros((len(COLUMNS), 2), np.int64), np.zeros((sheet.NODE_ROWS, 6), np.int64)
    for row, (ttft_us, moved, action, executor, source, prefill_us, held_up) in enumerate((one, other)):
        values = {
            "ttft_us": ttft_us, "transfer_bytes": moved, "action": action, "executor": executor + 3 * row,
            "source": source, "prefill_us": prefill_us,
        }  # fmt: skip
        for name, value in values.items():
            out[COLUMNS.index(name), row] = value
        nodes[HELD_UP_REQUESTS, executor + 3 * row] = held_up
    job = sheet.Job(1, 1, 1, 0, 0, 0, 1, 0, 0, 0, NO_NODE, weigh)
    links = sheet.LinkState(np.zeros((1, 1, sheet.LINK_FIELDS), np.int64), 0, 0, 1)
    pieces = np.zeros((2, 1, 3), np.int64)
    given_sheet = sheet.Sheet(out, pieces, nodes, nodes[0], nodes[0], links, RICH.coefficients, job)
    choices = [costing.Choice(*row[:3], row[3] + 3 * i, row[4]) for i, row in enumerate((one, other))]
    prices = [costing.priced_us(row[0], row[5], row[6], weigh) for row in (one, other)]
    wins = prices[0] < prices[1] or (prices[0] == prices[1] and costing.better(choices[1], choices[0]) is choices[0])
    assert floors.beats(given_sheet, 0, 1) == wins


def test_prepared_is_compiled_for_every_quote() -> None:
    """A quote after `prepare` needs no further version of the loop, whatever the request and the policy."""
    if pytest.importorskip("numba").config.DISABLE_JIT:
        pytest.skip("compiling is switched off")
    ttft.prepare()
    versions = len(kernel.compiled().signatures)  # type: ignore[attr-defined]
    for seed in range(30):
        RICH.quote(random_input(seed))
    assert len(kernel.compiled().signatures) == versions == 1  # type: ignore[attr-defined]


def test_a_changed_formula_is_compiled_anew() -> None:
    """The copy on disk is keyed by what the compiled function closes over: the text of every module with a formula."""
    if pytest.importorskip("numba").config.DISABLE_JIT:
        pytest.skip("compiling is switched off")
    (cell,) = kernel.compiled().py_func.__closure__  # type: ignore[attr-defined]
    texts = [Path(module.__file__ or "").read_bytes() for module in (costing, splitting, sheet, floors, kernel)]
    assert cell.cell_contents == hashlib.sha256(b"".join(texts)).hexdigest()
    called = {f.__module__ for f in vars(kernel).values() if inspect.isfunction(f)}
    assert {name for name in called if name.startswith("kvshare_research")} <= {
        module.__name__ for module in (costing, splitting, sheet, floors, kernel)
    }


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_more_allowed_ways_never_quote_a_longer_best(seed: int) -> None:
    given_input = random_input(seed)

    def best(actions: Iterable[Action]) -> int:
        return int(RICH.quote(structs.replace(given_input, actions=frozenset(actions))).ttft_us.min(initial=10**15))

    ways = sorted(given_input.actions)
    assert all(best(ways) <= best(w for w in ways if w != gone) for gone in ways)
    assert best(ways) <= best([])


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_links_as_rows_and_as_matrices_quote_the_same(seed: int) -> None:
    given_input = random_input(seed)
    a, b = RICH.quote(given_input), RICH.quote(structs.replace(given_input, links=matrix_of(given_input.links)))
    assert all(np.array_equal(getattr(a, name), getattr(b, name)) for name in COLUMNS)


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_each_blindness_hides_its_part_only(seed: int) -> None:
    given_input = random_input(seed)
    blind = {
        "no_load": ("queue_us",),
        "no_merge": ("merge_us",),
        "no_rtt": ("route_us",),
    }
    for switch, gone in blind.items():
        table = replace(replace(RICH, tier_ps_per_byte=(0, 0, 0)), **{switch: True}).quote(given_input)
        assert all(not getattr(table, name).any() for name in gone)
    both = replace(RICH, no_rtt=True, no_bandwidth=True, tier_ps_per_byte=(0, 0, 0)).quote(given_input)
    assert both.fetch_us.max(initial=0) <= 1
    alone = replace(RICH, single_source=True).quote(given_input)
    assert Action.MULTI_PULL not in alone.action


@pytest.mark.parametrize("broken", [{"c1_ps_per_token": -1}, {"sources_max": 0}, {"tier_ps_per_byte": (1, 2)}])
def test_impossible_values_are_refused(broken: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        replace(PLAIN, **broken)
