"""Held back by the router, a hit in a group's text takes as long as its miss; what is nobody's secret is not held back.

The same prompts go twice through the shipped machines: after a member of the group has run the text, and after it has run
another as long. A planted mistake makes the two differ, and the comparison must notice each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvshare_research.core import router, shaping
from kvshare_research.core.choosing import Choosing
from kvshare_research.core.nouns import HASH_BYTES, NO_NODE, Chain, Outcome, QuoteTable, Run, Status, Verdict
from kvshare_research.core.ports import Selector, UnderWay
from kvshare_research.core.shaping import AT_ONCE, UNSHAPED, Due, Shape, ShapeKind, shown, told
from kvshare_research.driver.held import Held
from tests.core.fleet import BLOCK_TOKENS, DIRECTORY, GROUP_ID, PUBLIC_ID, TWO, ask, fleet, only

PAD = Shape(kind=ShapeKind.PAD)
CONSTANT = Shape(kind=ShapeKind.CONSTANT, margin_permille=1_200)
GUESS, BESIDE = 3, 4


def world(ran: str, shape: Shape, scope: int = GROUP_ID, selector: Selector | None = None) -> list[Outcome]:
    """Tenant one has run the text `ran`; then tenant two guesses `g`, and asks something of its own meanwhile."""
    sim = fleet()
    sim.router.policy = replace(sim.router.policy, shape=shape)
    ask(sim, 1, tenant=1, prefix=ran, prefix_scope=scope, executor=0)
    ask(sim, 2, tenant=2, prefix="own", prefix_scope=TWO, executor=1)
    sim.run()
    sim.router.choosing = Choosing(selector or sim.router.policy.selector)
    ask(sim, GUESS, tenant=2, prefix="g", prefix_scope=scope)
    ask(sim, BESIDE, tenant=2, prefix="own", prefix_scope=TWO, executor=0, at_us=sim.now_us + 2)
    return sim.run()


def alike(shape: Shape) -> None:
    """The guess shows nothing: equal times to the microsecond that quotes are rounded to, and nothing else told."""
    hit, miss = (only(world(ran, shape), GUESS) for ran in "gx")
    assert hit.resident_tokens + hit.routed_tokens + hit.pulled_tokens == 8 * BLOCK_TOKENS > 0 == miss.shown_tokens
    assert abs(hit.ttft_us - miss.ttft_us) <= 2
    assert abs(hit.end_to_end_us - miss.end_to_end_us) <= 2 + abs(hit.decode_us - miss.decode_us)
    assert (hit.shown_tokens, hit.shown_executor) == (miss.shown_tokens, miss.shown_executor) == (0, NO_NODE)


def test_without_a_shape_a_hit_shows() -> None:
    hit, miss = (only(world(ran, UNSHAPED), GUESS) for ran in "gx")
    assert hit.ttft_us < miss.ttft_us / 2
    assert hit.shown_tokens > 0 == hit.held_us == hit.shape_us


@pytest.mark.parametrize("shape", [PAD, CONSTANT], ids=lambda s: s.kind.name)
def test_with_a_shape_it_does_not_and_no_work_waits(shape: Shape) -> None:
    alike(shape)
    plain, held = ({o.request_id: o for o in world("g", s)} for s in (UNSHAPED, shape))
    assert set(plain) == set(held)
    for number, one in held.items():
        other = plain[number]
        assert one.ttft_us - one.held_us == other.ttft_us, "only what is told is later"
        assert one.end_to_end_us - one.held_us == other.end_to_end_us
        assert (one.output_tokens, one.computed_tokens) == (other.output_tokens, other.computed_tokens)
        assert (one.queue_us, one.prefill_us) == (other.queue_us, other.prefill_us)


def test_padding_leaves_alone_what_no_group_shares() -> None:
    for scope in (PUBLIC_ID, TWO):
        outcome = only(world("g", PAD, scope), GUESS)
        assert outcome.held_us == outcome.shape_us == 0
        assert outcome.shown_executor == outcome.executor
    public = only(world("g", CONSTANT, PUBLIC_ID), GUESS)
    assert public.held_us > 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Hurried(Selector):
    """Turns away what its row would not answer in time."""

    may_refuse: ClassVar[bool] = True

    most_us: int

    def select(self, table: QuoteTable) -> int:
        return int(table.ttft_us.argmin())

    def refuses(self, table: QuoteTable, row: int, under_way: Sequence[UnderWay], now_us: int) -> str:
        return "too late" if table.ttft_us[row] > self.most_us else ""


@pytest.mark.parametrize("shape", [UNSHAPED, PAD, CONSTANT], ids=lambda s: s.kind.name)
def test_being_turned_away_shows_no_more_than_a_time_would(shape: Shape) -> None:
    miss = only(world("x", UNSHAPED), GUESS)
    ends = []
    for ran in "gx":
        outcomes = world(ran, shape, selector=Hurried(most_us=miss.ttft_us * 2 // 3))
        ends.append(next(o.status for o in outcomes if o.request_id == GUESS))
    assert ends[1] == Status.REJECTED
    assert (ends[0] == ends[1]) == (shape is not UNSHAPED)


def beside(ran: str, shape: Shape, nodes: int, gap_us: int, selector: Selector | None = None) -> tuple[Any, ...]:
    """What tenant two is told of four requests of its own, sent `gap_us` after its guess, and what was learned."""
    sim = fleet(nodes)
    sim.router.policy = replace(sim.router.policy, shape=shape)
    ask(sim, 1, tenant=1, prefix=ran, prefix_scope=GROUP_ID, executor=0)
    sim.run()
    sim.router.choosing = Choosing(selector or sim.router.policy.selector)
    start_us = sim.now_us + 10**7
    ask(sim, GUESS, tenant=2, prefix="g", prefix_scope=GROUP_ID, at_us=start_us)
    for i in range(4):
        ask(sim, 10 + i, tenant=2, prefix=f"own{i}", prefix_scope=TWO, at_us=start_us + gap_us + i)
    ended = sorted((o for o in sim.run() if o.request_id >= 10), key=lambda o: o.request_id)
    return [(o.status, o.ttft_us, o.end_to_end_us, o.shown_executor) for o in ended], sim.router.choosing.state


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("gap_us", [1, 60_000, 340_000])
def test_what_comes_behind_a_guess_shows_nothing_of_it(nodes: int, gap_us: int) -> None:
    """A hit leaves its node sooner than a miss: of constant shape, the queue that others meet does not show it."""
    assert beside("g", CONSTANT, nodes, gap_us) == beside("x", CONSTANT, nodes, gap_us)


def test_without_a_shape_and_padded_it_shows() -> None:
    for shape in (UNSHAPED, PAD):
        assert beside("g", shape, 1, 1) != beside("x", shape, 1, 1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Crowded(Selector):
    """Turns away who would not be the only one before its first token; remembers every first token."""

    may_refuse: ClassVar[bool] = True
    learns: ClassVar[bool] = True

    def select(self, table: QuoteTable) -> int:
        return int(table.ttft_us.argmin())

    def refuses(self, table: QuoteTable, row: int, under_way: Sequence[UnderWay], now_us: int) -> str:
        return "crowded" if any(u.first_token_us is None for u in under_way) else ""

    def initial_state(self) -> Any:
        return ()

    def answered(self, state: Any, ttft_us: int) -> Any:
        return (*state, ttft_us)


@pytest.mark.parametrize("gap_us", [1, 60_000, 340_000])
def test_neither_a_refusal_nor_what_is_learned_shows_a_guess(gap_us: int) -> None:
    hit, miss = (beside(ran, CONSTANT, 1, gap_us, Crowded()) for ran in "gx")
    assert hit == miss
    assert beside("g", UNSHAPED, 1, 60_000, Crowded()) != beside("x", UNSHAPED, 1, 60_000, Crowded())


def _of_tenants(chain: Any, directory: Any) -> int | None:
    return next((0 for scope_id, _ in chain.scope_ends if directory.scopes[scope_id].level > 2), None)


def _never_held(theirs: Outcome, ttft_us: int, end_us: int, due: Due, size: int) -> dict[str, int]:
    return told(theirs, ttft_us, end_us, due._replace(after_us=0), size)


def _held_from_its_answer(theirs: Outcome, ttft_us: int, end_us: int, due: Due, size: int) -> dict[str, int]:
    return told(theirs, ttft_us, end_us, due._replace(after_us=due.after_us + ttft_us), size)


def _bills_reuse(theirs: Outcome, ttft_us: int, end_us: int, due: Due, size: int) -> dict[str, int]:
    return told(theirs, ttft_us, end_us, due._replace(shown_blocks=theirs.prompt_tokens), size)


def _names_the_node(theirs: Outcome, ttft_us: int, end_us: int, due: Due, size: int) -> dict[str, int]:
    return told(theirs, ttft_us, end_us, due, size) | {"shown_executor": theirs.executor}


def _last_token_early(theirs: Outcome, ttft_us: int, end_us: int, due: Due, size: int) -> dict[str, int]:
    return told(theirs, ttft_us, end_us, due, size) | {"end_to_end_us": end_us}


@pytest.mark.parametrize(
    ("module", "name", "mistake"),
    [
        (shaping, "group_start", _of_tenants),
        (router, "shown", lambda verdict, blocks: verdict),
        (router, "told", _never_held),
        (router, "told", _held_from_its_answer),
        (router, "told", _bills_reuse),
        (router, "told", _names_the_node),
        (router, "told", _last_token_early),
    ],
)
def test_the_comparison_notices(module: Any, name: str, mistake: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(module, name, mistake)
    with pytest.raises(AssertionError):
        alike(PAD)


times = st.integers(0, 10**9)


@given(times, times, times, st.integers(0, 40), st.none() | st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_what_is_told(ttft_us: int, more_us: int, after_us: int, reused: int, blocks: int | None) -> None:
    outcome = Outcome(
        request_id=1, tenant_id=1, application="", status=Status.DONE, executor=3, ttft_us=ttft_us,
        end_to_end_us=ttft_us + more_us, prompt_tokens=16 * reused + 1, computed_tokens=1, resident_tokens=16 * reused,
        same_tenant_tokens=16 * reused,
    )  # fmt: skip
    one = structs.replace(outcome, **told(outcome, ttft_us, ttft_us + more_us, Due(after_us, blocks), 16))
    assert one.ttft_us == max(ttft_us, after_us) == ttft_us + one.held_us
    assert one.end_to_end_us - one.ttft_us == more_us
    assert one.shown_tokens == 16 * min(reused, reused if blocks is None else blocks)
    assert (one.shown_executor == 3) == (blocks is None)
    assert told(outcome, ttft_us, ttft_us, AT_ONCE, 16)["ttft_us"] == ttft_us


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 30)), max_size=6), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_what_may_not_show_is_held_by_nobody(rows: list[tuple[int, int, int]], blocks: int) -> None:
    verdict = Verdict(runs=tuple(Run(*row) for row in rows), readable_blocks=30)
    cut = shown(verdict, blocks)
    assert all(run.block_count <= blocks for run in cut.runs)
    assert [run.block_count for run in cut.runs] == [min(r[2], blocks) for r in rows if blocks]
    assert cut.readable_blocks == verdict.readable_blocks, "rights are what they are"


def test_of_two_decisions_the_later_time_holds() -> None:
    assert Due(3, 1).later(Due(5, 0)) == Due(5, 0)
    assert Due(5, None).later(Due(3, 0)) == Due(5, None)


def test_a_loop_that_comes_late_says_so() -> None:
    held = Held()
    outcomes = [
        Outcome(request_id=i, tenant_id=1, application="", status=Status.REJECTED, ttft_us=100, held_us=60)
        for i in range(3)
    ]
    for outcome, release_us in zip(outcomes, (900, 0, 500), strict=True):
        held.add(outcome, release_us)
    assert held.next_us() == 0
    assert held.due(499) == [outcomes[1]]
    (late,) = held.due(510)
    assert (late.request_id, late.ttft_us, late.held_us, late.end_to_end_us) == (2, 110, 70, 10)
    assert held.due(899) == []
    assert held.due(900) == [outcomes[0]]
    assert held.next_us() is None


@pytest.mark.parametrize(("scopes", "first"), [(((PUBLIC_ID, 2), (GROUP_ID, 4), (TWO, 6)), 2), (((TWO, 6),), None)])
def test_where_a_groups_text_begins(scopes: tuple[tuple[int, int], ...], first: int | None) -> None:
    made = Chain(hashes=b"x" * 6 * HASH_BYTES, scope_ends=scopes, block_tokens=BLOCK_TOKENS)
    assert shaping.group_start(made, DIRECTORY) == first
