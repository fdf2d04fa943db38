"""What is observable of a promoted prefix is a function of the released set: who has run it since changes nothing."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from kvshare_research.core import messages as m
from kvshare_research.core.account import Account
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import AccountSpec, Chain, Outcome, Status
from kvshare_research.core.promotion import FIRST_INSTALL, Promotion, name_of
from kvshare_research.disclosure.after_k import AfterK
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.driver.simulator import Simulator
from kvshare_research.privacy.desk import Desk
from kvshare_research.retention.lru import LruRetention
from kvshare_research.study.disclosing import Discloser, Texts
from tests.core.fleet import fleet, only
from tests.disclosure.test_disclosing import DIRECTORY, HASHER, SIZE, prompt

LENGTHS = (32, 96, 40)
NODES = 3
ATTACKER, VICTIM = 1, 2
HOUR_US = 3_600_000_000


def released() -> tuple[Chain, ...]:
    offer = prompt(VICTIM, LENGTHS).offer
    assert offer is not None
    return tuple(offer.prefix(name) for name in offer.names)


def town(capacity: int = 256) -> Simulator:
    return fleet(NODES, capacity=capacity, directory=DIRECTORY)


def promote(sim: Simulator, prefixes: tuple[Chain, ...]) -> None:
    sim.at(sim.now_us, m.PrefixesReleased(prefixes=prefixes))
    sim.run()


def asked(sim: Simulator, tenant: int, number: int, node: int, at_us: int, names: frozenset[bytes]) -> None:
    """The tenant asks with the prefix at a node."""
    made = prompt(tenant, LENGTHS, number=number, released=names)
    sim.inject(replace(made.request, arrival_us=at_us, ingress=node), made.chain)


def probed(runs: tuple[int, ...], node: int, *, install: bool) -> Outcome:
    """What the attacker sees at `node`, an hour after the victim ran the prefix at the nodes of `runs`."""
    sim, names = town(), frozenset(map(name_of, released()))
    if install:
        promote(sim, released())
        assert sim.router.promoted == names
    start = sim.now_us + HOUR_US
    for i, at in enumerate(runs):
        asked(sim, VICTIM, 10 + i, at, start + i * 10_000_000, names)
    asked(sim, ATTACKER, 50, node, start + HOUR_US, names)
    sim.run()
    for worker in sim.workers:
        worker.ledger.check()
    return only(sim.outcomes, 50)


WORLDS = [(), (0,), (1,), (2,), (0, 1), (2, 0, 1), (1, 1)]


@pytest.mark.parametrize("node", range(NODES))
def test_no_run_since_the_release_is_seen(node: int) -> None:
    """In pairs: whoever ran the prefix wherever, time, hits, way and place of the probe's answer are the same."""
    seen = [probed(runs, node, install=True) for runs in WORLDS]
    assert all(outcome == seen[0] for outcome in seen)
    assert seen[0].resident_tokens == 128 and seen[0].executor == node


def test_without_installation_it_would_be_seen() -> None:
    """The same pairs where the first to ask after the release publishes: the pair differs, so the test above can fail."""
    assert probed((), 0, install=False).ttft_us > 1.5 * probed((0,), 0, install=False).ttft_us
    assert probed((1,), 0, install=False).action != probed((0,), 0, install=False).action


def test_what_is_kept_outlasts_any_traffic() -> None:
    """Pools far too small for what is asked meanwhile: the kept prefix is there for the probe all the same."""
    sim = town(capacity=24)
    promote(sim, released())
    names = sim.router.promoted
    assert len(names) == len(released())
    for number in range(40):
        tenant = 2 + number % 5
        made = prompt(tenant, (16, 64, 100), number=100 + number)
        sim.inject(
            replace(made.request, arrival_us=sim.now_us + 1 + number * 3_000_000, ingress=number % NODES), made.chain
        )
    asked(sim, ATTACKER, 50, 1, sim.now_us + HOUR_US, names)
    sim.run()
    assert only(sim.outcomes, 50).resident_tokens == 128
    assert all(o.status == Status.DONE for o in sim.outcomes)


def test_a_request_that_kept_blocks_leave_no_room_for_is_rejected_and_does_not_wait_for_ever() -> None:
    sim = town(capacity=16)
    promote(sim, released())
    made = prompt(3, (16, 64, 100), number=7)
    sim.inject(replace(made.request, arrival_us=sim.now_us + 1), made.chain)
    sim.run()
    (outcome,) = sim.outcomes
    assert outcome.status == Status.REJECTED
    assert "released prefixes keep" in outcome.reason


def test_without_room_to_keep_it_a_prefix_is_shared_nowhere() -> None:
    """A pin is an admission: where one node refuses it, no chain names the prefix, and no node differs from another."""
    sim = town()
    spec = AccountSpec(scope_id=0, reserved_blocks=0, limit_blocks=4)
    sim.workers[1].ledger = Ledger(capacity_blocks=256, accounts=(spec,), retention=LruRetention())
    sim.workers[1] = type(sim.workers[1])(
        node=1, incarnation=1, policy=sim.workers[1].policy, ledger=sim.workers[1].ledger, directory=DIRECTORY
    )
    promote(sim, released())
    deepest = max(released(), key=lambda chain: chain.block_count)
    assert name_of(deepest) not in sim.router.promoted
    assert sim.workers[0].keeping.block_count == deepest.block_count


def test_a_ttl_does_not_end_what_is_kept() -> None:
    sim = town()
    for worker in sim.workers:
        worker.ledger.configure(
            AccountSpec(scope_id=0, reserved_blocks=0, limit_blocks=256, ttl_us=1_000_000, sliding_ttl=True)
        )
    promote(sim, released())
    names = sim.router.promoted
    asked(sim, ATTACKER, 50, 1, sim.now_us + HOUR_US, names)
    for node in range(NODES):
        sim.at(sim.now_us + HOUR_US // 2, **{f"node{node}": m.Ticked()})
    sim.run()
    assert only(sim.outcomes, 50).resident_tokens == 128


def test_a_node_that_returns_keeps_it_again_before_it_is_shared_again() -> None:
    sim = town()
    fresh = town()
    sim.revive = lambda node, incarnation: fresh.workers[node]
    promote(sim, released())
    names, now_us = sim.router.promoted, sim.now_us
    sim.fail(2, now_us + 10, noticed_us=now_us + 20, back_us=now_us + 1_000_000)
    seen = []
    for wait_us in (30, 1_000_001):
        sim.run(now_us + wait_us)
        seen.append(sim.router.promoted)
    sim.run()
    assert seen == [names, frozenset()]
    assert sim.router.promoted == names
    assert fresh.workers[2].keeping.block_count == 8


def test_releases_add_and_remove_without_touching_what_stays() -> None:
    sim = town()
    one, all_of_them = released()[:1], released()
    for prefixes in (all_of_them, one, all_of_them, ()):
        promote(sim, prefixes)
        assert sim.router.promoted == frozenset(map(name_of, prefixes))
        kept = max((chain.block_count for chain in prefixes), default=0)
        assert [w.keeping.block_count for w in sim.workers] == [kept] * NODES
        assert [w.ledger.pinned_blocks for w in sim.workers] == [kept] * NODES
    assert sim.outcomes == [], "the operator's requests are nobody's outcome"


def test_a_dispatched_request_outlives_a_demotion_and_the_next_one_is_private() -> None:
    """Demotion does not fence what is under way: it is answered with the chain it has. What comes after has its own."""
    sim = town()
    promote(sim, released())
    asked(sim, 3, 7, 0, sim.now_us + 10, sim.router.promoted)
    sim.run(sim.now_us + 11)
    promote(sim, ())
    asked(sim, 4, 8, 0, sim.now_us + 10, sim.router.promoted)
    sim.run()
    assert only(sim.outcomes, 7).resident_tokens == 128
    assert only(sim.outcomes, 8).resident_tokens == 32, "the public system prompt"


def test_an_installation_that_fails_is_not_repeated_for_ever() -> None:
    promotion, chains = Promotion(), released()
    promotion.release(chains, [0])
    promotion.keeps(0, (), [0])
    first = promotion.installs([0], 0)
    assert first and all(request.request_id > FIRST_INSTALL for request, _ in first)
    for request, _ in first:
        assert promotion.ended(request.request_id)
    assert promotion.installs([0], 0) == []
    promotion.release(chains, [0])
    assert len(promotion.installs([0], 0)) == len(first)
    assert not promotion.ended(5)


@pytest.mark.parametrize(("known", "bound"), list(product((1, 3), (64, 100_000))))
def test_texts_are_bounded_and_exact(known: int, bound: int) -> None:
    texts, made = Texts(bound), [prompt(VICTIM, (16 * (i + 1), 96, 40)) for i in range(known)]
    for each in made:
        assert each.offer is not None
        texts.note(each.offer, each.tokens)
    assert made[-1].offer is not None
    for name, blocks in zip(made[-1].offer.names, made[-1].offer.blocks, strict=True):
        text = texts.get(name)
        assert text is not None and text.tolist() == made[-1].tokens[: blocks * SIZE].tolist()
    first = made[0].offer
    assert first is not None
    assert (texts.get(first.names[0]) is None) == (known > 1 and bound == 64)
    assert texts.get(b"x" * 16) is None


def test_the_account_of_the_wider_scope_bears_it() -> None:
    sim = town()
    promote(sim, released())
    assert sim.workers[0].ledger.account(0) == Account(used=8, pinned=8, reserved=0, limit=256, priority=0)


def test_a_conversation_goes_on_under_its_own_name_when_its_front_is_promoted() -> None:
    """What a tenant has cached behind a prefix is not lost at its promotion; a new conversation begins with the shared one."""
    sim = town()
    desk = Desk(AfterK(k=2, unit="tenant", period_us=HOUR_US), SeededNoise(0), None)
    discloser = Discloser(HASHER, desk, lambda event: sim.at(sim.now_us, event), lambda: sim.router)

    def ask(tenant: int, number: int, question: int, now_us: int) -> Outcome:
        made = prompt(tenant, (32, 96, 160), number=question)
        request, chain = discloser.arrive(replace(made.request, request_id=number), made.tokens, now_us)
        sim.run()
        sim.inject(replace(request, arrival_us=sim.now_us + 1), chain)
        sim.run()
        return only(sim.outcomes, number)

    for tenant in (1, 2):
        ask(tenant, tenant, tenant, 0)
    discloser.advance(HOUR_US)
    sim.run()
    assert sim.router.promoted
    assert ask(1, 11, 1, HOUR_US).resident_tokens == 32 + 96 + 144, "the same question again: all but its last block"
    new = ask(1, 12, 77, HOUR_US)
    assert (new.resident_tokens, new.cross_tenant_tokens) == (128, 96), "the public 32 are its own"
    assert ask(3, 13, 78, HOUR_US).cross_tenant_tokens == 128
