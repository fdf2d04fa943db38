"""Two prompts whose block hashes collide: the second is computed, counted and explained, wherever the first one is held.

Paired throughout: equal tokens hit, and where the marks collide too the second prompt would hit, so they are what stops it.
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from kvshare_research.core import messages as m
from kvshare_research.core.nouns import Chain, MissReason, Outcome, Request, Segment
from kvshare_research.driver.simulator import Simulator
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace, chain

from .test_fleet import BLOCK_TOKENS, DIRECTORY, ONE, PUBLIC_ID, TWO, fleet, only

BLOCKS, SHARED = 8, 5  # blocks of a prompt, and those whose hash collides
SPACE = ModelSpace(model="m", dtype="fp32", block_tokens=BLOCK_TOKENS)
RING = KeyRing(RootSecret.from_seed(3))


def prompt(text: int, scope_id: int = PUBLIC_ID) -> Chain:
    tokens = np.random.default_rng(text).integers(0, 1000, BLOCKS * BLOCK_TOKENS, dtype=np.uint32)
    segments = (Segment(scope_id=scope_id, token_count=len(tokens)),)
    return chain(tokens, segments, (scope_id,), directory=DIRECTORY, ring=RING, space=SPACE)


def colliding(mine: Chain, theirs: Chain, start: int = 0) -> Chain:
    """`mine` with the hashes of `theirs` from block `start` on, as many as collide."""
    a, b = start * 16, (start + SHARED) * 16
    return replace(mine, hashes=mine.hashes[:a] + theirs.hashes[a:b] + mine.hashes[b:])


def ask(sim: Simulator, number: int, chain_: Chain, *, tenant: int, executor: int, at_us: int | None = None) -> None:
    scope_id = chain_.scope_at(0)
    request = Request(
        request_id=number, tenant_id=tenant, output_tokens_max=1, ingress=executor, executor=executor,
        segments=(Segment(scope_id=scope_id, token_count=BLOCKS * BLOCK_TOKENS + 3),),
        arrival_us=sim.now_us + 1 if at_us is None else at_us,
    )  # fmt: skip
    sim.inject(request, chain_)


def second(first: Chain, then: Chain, executor: int, gap_us: int | None = None) -> Outcome:
    """The outcome of `then`, asked on a node after `first` was on node 0, or `gap_us` after it was asked."""
    sim = fleet(guess_us=2_000_000)
    ask(sim, 1, first, tenant=1, executor=0)
    if gap_us is None:
        sim.run()
    ask(sim, 2, then, tenant=2, executor=executor, at_us=None if gap_us is None else 1 + gap_us)
    outcome = only(sim.run(), 2)
    for worker in sim.workers:
        worker.ledger.check()
    return outcome


@pytest.mark.parametrize("gap_us", [None, 1])
@pytest.mark.parametrize("executor", [0, 1])
def test_a_collision_is_a_miss_with_its_reason(executor: int, gap_us: int | None) -> None:
    """Resident, pulled, and while the other prompt is still being computed."""
    first, other = prompt(1), prompt(2)
    outcome = second(first, colliding(other, first), executor, gap_us)
    assert outcome.computed_tokens == outcome.prompt_tokens
    if gap_us is None:
        assert outcome.collided_blocks == 1
        assert dict(outcome.missed)[MissReason.COLLISION] == SHARED * BLOCK_TOKENS
        assert MissReason.STALE not in dict(outcome.missed)


@pytest.mark.parametrize("gap_us", [None, 1])
@pytest.mark.parametrize("executor", [0, 1])
def test_equal_tokens_hit_and_so_would_a_collision_of_the_marks(executor: int, gap_us: int | None) -> None:
    first, other = prompt(1), prompt(2)
    for then in (first, replace(other, hashes=first.hashes, marks=first.marks)):
        outcome = second(first, then, executor, gap_us)
        assert outcome.computed_tokens == outcome.prompt_tokens - BLOCKS * BLOCK_TOKENS
        assert outcome.collided_blocks == 0


def test_a_collision_inside_a_chain_ends_the_hit_there() -> None:
    """The blocks before it are used; it and what hangs from it are not, although that is held under equal hashes too."""
    first = prompt(1)
    tampered = replace(first, marks=first.marks[:24] + prompt(2).marks[24:])
    outcome = second(first, tampered, 0)
    assert outcome.computed_tokens == outcome.prompt_tokens - 3 * BLOCK_TOKENS
    assert dict(outcome.missed)[MissReason.COLLISION] == (BLOCKS - 3) * BLOCK_TOKENS


def test_a_reader_does_not_believe_a_holder() -> None:
    """A holder that sends other tokens than were asked for, its own check passed over: the reader computes."""
    sim = fleet()
    first, other = prompt(1), prompt(2)
    ask(sim, 1, first, tenant=1, executor=0)
    sim.run()
    for block in sim.workers[0].ledger.named():
        block.mark = other.mark(block.depth)  # the node's books are wrong
    serving = sim.workers[0].serving
    honest = serving.ask

    def ask_blindly(event: m.FetchAsked, *rest: object) -> object:
        sent = honest(replace(event, marks=other.marks), *rest)  # type: ignore[arg-type]
        assert isinstance(sent, m.SendBlocks)
        return sent

    serving.ask = ask_blindly  # type: ignore[method-assign,assignment]
    sim.workers[0]._fetch_asked = lambda event, now_us: [ask_blindly(event, sim.workers[0].directory, now_us)]  # type: ignore[method-assign,list-item,return-value]
    ask(sim, 2, first, tenant=2, executor=1)
    outcome = only(sim.run(), 2)
    assert sim.moved_bytes > 0, "nothing was sent"
    assert outcome.computed_tokens == outcome.prompt_tokens
    assert dict(outcome.missed)[MissReason.COLLISION] == BLOCKS * BLOCK_TOKENS


def test_a_collision_with_what_the_reader_may_not_read_looks_like_a_miss() -> None:
    """A pull that collides with another tenant's block is refused in the words of any absent block."""
    first = prompt(1, ONE)
    outcome = second(first, colliding(prompt(2, TWO), first), 1)
    assert outcome.computed_tokens == outcome.prompt_tokens
    assert outcome.collided_blocks == 0


def test_marks_are_of_the_same_tokens_under_other_keys() -> None:
    """Equal exactly where hashes are, whatever part of the prefix differs; never a part of the hash."""
    one, other = prompt(1), prompt(2)
    assert len(one.marks) == BLOCKS * 8
    assert all(one.mark(i) != one.block_hash(i)[:8] and one.mark(i) != other.mark(i) for i in range(BLOCKS))
    assert prompt(1).marks == one.marks
    assert prompt(1, ONE).mark(0) != one.mark(0), "marks would link scopes"
