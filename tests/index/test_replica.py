"""The replica under a hostile network, the journal's answers, snapshots that lie, and single faults by name."""

from __future__ import annotations

import random
import sys
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from kvshare_research.core.journal import Journal
from kvshare_research.core.messages import (
    AskSnapshot,
    BlocksRemoved,
    BlocksStored,
    Heartbeat,
    PoolMessage,
    Snapshot,
    TierCleared,
)
from kvshare_research.core.replica import Replica
from kvshare_research.index.flat import FlatIndex

from . import kit, world

KINDS = tuple(kit.EXACT)
N, R, TIER = st.integers(0, 1), st.integers(0, len(KINDS) - 1), st.integers(0, 1)
PATH = st.sampled_from(world.PATHS)


class ReplicaMachine(RuleBasedStateMachine):
    late = Bundle("late")

    def __init__(self) -> None:
        super().__init__()
        self.world = world.World(KINDS)

    @rule(n=N, path=PATH, start=st.integers(0, 2), tier=TIER)
    def store(self, n: int, path: kit.Path, start: int, tier: int) -> None:
        self.world.store(n, path, start, tier)

    @rule(n=N, path=PATH, tier=TIER)
    def remove(self, n: int, path: kit.Path, tier: int) -> None:
        self.world.remove(n, path, tier)

    @rule(n=N, tier=TIER | st.none())
    def clear(self, n: int, tier: int | None) -> None:
        self.world.clear(n, tier)

    @rule(n=N)
    def heartbeat(self, n: int) -> None:
        self.world.heartbeat(n)

    @rule(n=N)
    def crash(self, n: int) -> None:
        self.world.crash(n)

    @precondition(lambda self: any(self.world.wires))
    @rule(data=st.data(), fate=st.sampled_from(["deliver", "deliver", "repeat", "lose"]))
    def network(self, data: st.DataObject, fate: str) -> None:
        r = data.draw(st.sampled_from([i for i, w in enumerate(self.world.wires) if w]))
        wire = self.world.wires[r]
        at = data.draw(st.integers(0, len(wire) - 1))  # any position: reordering
        message = wire[at] if fate == "repeat" else wire.pop(at)
        if fate != "lose":
            self.world.deliver(r, message)

    @rule(r=R)
    def burst(self, r: int) -> None:
        self.world.deliver_all(r)

    @rule(target=late, n=N)
    def hold_back(self, n: int) -> PoolMessage:
        return self.world.snapshot(n)

    @rule(m=late, r=R)
    def deliver_late(self, m: PoolMessage, r: int) -> None:
        self.world.deliver(r, m)

    @rule(r=R)
    def restart_router(self, r: int) -> None:
        self.world.save_and_load(r)

    @rule(r=R)
    def remember_router(self, r: int) -> None:
        self.world.remember(r)

    @rule(r=R)
    def crash_router(self, r: int) -> None:
        self.world.crash_router(r)

    @rule(r=R, n=N)
    def lose_node(self, r: int, n: int) -> None:
        self.world.replicas[r].forget(n)

    @rule(r=R, n=N, path=PATH, tier=TIER)
    def guess(self, r: int, n: int, path: kit.Path, tier: int) -> None:
        self.world.guess(r, n, path, tier)

    @rule()
    def heal(self) -> None:
        self.world.heal()

    @invariant()
    def never_wrong(self) -> None:
        self.world.check()


TestReplica = ReplicaMachine.TestCase
TestReplica.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


def step(w: world.World, rng: random.Random) -> None:
    n, r, tier, path = rng.randrange(2), rng.randrange(len(w.kinds)), rng.randrange(2), rng.choice(world.PATHS)
    wire, roll = w.wires[r], rng.random()
    if roll < 0.2:
        w.store(n, path, rng.randrange(3), tier)
    elif roll < 0.3:
        w.remove(n, path, tier)
    elif roll < 0.85 and wire:
        message = wire[at := rng.randrange(len(wire))]
        if rng.random() < 0.8:
            wire.pop(at)
        if rng.random() < 0.8:
            w.deliver(r, message)
    elif roll < 0.9:
        w.deliver_all(r)
    else:
        rare = [
            lambda: w.clear(n, rng.choice([None, 0, 1])),
            lambda: w.heartbeat(n),
            lambda: w.crash(n),
            lambda: w.save_and_load(r),
            lambda: w.remember(r),
            lambda: w.crash_router(r),
            lambda: w.replicas[r].forget(n),
            lambda: w.guess(r, n, path, tier),
            w.heal,
        ]
        rng.choice(rare)()


def walk(seed: int, steps: int, kinds: tuple[str, ...] = KINDS) -> world.World:
    """A long random walk through the same world; every step is checked."""
    rng, w = random.Random(seed), world.World(kinds)
    for _ in range(steps):
        step(w, rng)
        w.check()
    w.heal()
    return w


def test_a_long_walk_never_goes_wrong_and_meets_every_anomaly() -> None:
    w = walk(seed=1, steps=3_000)
    seen = {name for name, count in w.anomalies().items() if count}
    expected = {"stale_incarnation", "restarted", "repeated", "gap", "held", "dropped_ahead", "unknown_removed"}
    assert expected | {"guess_expired", "node_forgotten"} <= seen


# ------------------------------------------------------------- single faults
def replica(window: int = 256) -> Replica:
    return Replica(kit.load("reference").new_store(2), 2, window_entries=window)


def stored(path: kit.Path, tier: int = 0) -> BlocksStored:
    return BlocksStored(tier=tier, parent=kit.parent(path), hashes=(kit.block(path),))


def filled(journal: Journal, count: int) -> list[PoolMessage]:
    return [journal.write(stored((0,) * (k + 1))) for k in range(count)]


def test_a_worker_that_restarts_at_seq_1_clears_what_it_held_before() -> None:
    r = replica()
    for m in filled(Journal(0, 1), 3):
        r.receive(m, 0)
    r.receive(Journal(0, 2).write(stored((1,))), 1)
    assert r.rows(0) == ((0, kit.block((1,)), None, 1),)
    assert r.counters["restarted"] == 1


def test_recovery_happens_once_and_the_cursor_follows_the_answer() -> None:
    """Entries 5 to 9 are lost, 10 arrives: one request, an answer as of 12; 13 is next."""
    r, journal = replica(), Journal(0, 1)
    messages = filled(journal, 13)
    asks = [a for m in [*messages[:4], messages[9]] for a in r.receive(m, 0)]
    assert asks == [AskSnapshot(node=0, incarnation=1, after_seq=4)]
    rows = tuple(sorted((0, kit.block((0,) * (k + 1)), kit.parent((0,) * (k + 1)), 1) for k in range(12)))
    r.receive(PoolMessage(node=0, incarnation=1, seq=12, body=Snapshot(as_of_seq=12, rows=rows)), 1)
    assert (r.views[0].seq, r.views[0].behind, r.rows(0)) == (12, False, rows)
    assert all(r.receive(m, 2) == () for m in messages)
    assert (r.views[0].seq, r.counters["repeated"]) == (13, 12)


def test_a_reader_that_joins_late_asks_before_it_counts_as_complete() -> None:
    r, journal = replica(), Journal(0, 1)
    (ask,) = r.receive(filled(journal, 57)[-1], 0)
    assert r.views[0].behind
    for m in journal.answer(ask.incarnation, ask.after_seq, tuple):
        r.receive(m, 1)
    assert (r.views[0].seq, r.views[0].behind) == (57, False)


def test_a_lost_last_entry_is_noticed_by_the_heartbeat() -> None:
    r, journal = replica(), Journal(0, 1)
    r.receive(filled(journal, 2)[0], 0)
    assert r.receive(journal.heartbeat(), 0) == (AskSnapshot(node=0, incarnation=1, after_seq=1),)


def test_requests_for_repair_are_not_repeated_within_the_interval() -> None:
    r = Replica(kit.load("reference").new_store(2), 2, ask_interval_us=100)
    beat = PoolMessage(node=0, incarnation=1, seq=5, body=Heartbeat(head_seq=5))
    assert [len(r.receive(beat, t)) for t in (0, 50, 99, 100, 150)] == [1, 0, 0, 1, 0]


def test_the_journal_sends_entries_while_it_has_them_and_a_snapshot_after() -> None:
    journal = Journal(0, 3, kept_max=4)
    filled(journal, 10)
    assert [m.seq for m in journal.answer(3, 6, tuple)] == [7, 8, 9, 10]
    assert [type(m.body) for m in journal.answer(3, 5, tuple)] == [Snapshot]
    assert [type(m.body) for m in journal.answer(2, 10, tuple)] == [Snapshot]
    assert journal.answer(3, 10, tuple) == ()


def test_a_fenced_worker_that_lives_rejoins_with_what_it_holds() -> None:
    r, journal = replica(), Journal(0, 1)
    for m in filled(journal, 2):
        r.receive(m, 0)
    rows = r.rows(0)
    r.forget(0)
    assert r.rows(0) == ()
    (ask,) = r.receive(journal.heartbeat(), 1)
    for m in journal.answer(ask.incarnation, ask.after_seq, lambda: rows):
        r.receive(m, 2)
    assert (r.rows(0), r.views[0].incarnation) == (rows, 2)


def test_an_unknown_removal_does_not_abort_what_follows() -> None:
    r, journal = replica(), Journal(0, 1)
    r.receive(journal.write(BlocksRemoved(tier=0, hashes=(kit.block((1,)), kit.block((0,))))), 0)
    r.receive(journal.write(stored((0,))), 0)
    assert r.counters["unknown_removed"] == 2
    assert kit.depths(r.store, (0,)) == {(0, 0): 1}


def test_clearing_one_tier_leaves_the_other_tier_and_the_other_node() -> None:
    r = replica()
    for n in range(2):
        journal = Journal(n, 1)
        for t in range(2):
            r.receive(journal.write(stored((0,), t)), 0)
        if not n:
            r.receive(journal.write(TierCleared(tier=0)), 0)
    assert kit.depths(r.store, (0,)) == {(0, 1): 1, (1, 0): 1, (1, 1): 1}


A, B = kit.block((0,)), kit.block((0, 0))


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (((0, A, B, 1), (0, B, A, 1)), "cycle"),
        (((0, A, A, 1),), "cycle"),
        (((0, A[:8], None, 1),), "malformed hash"),
        (((0, A, b"x", 1),), "malformed hash"),
        (((0, A, None, 0),), "impossible count or tier"),
        (((-1, A, None, 1),), "impossible count or tier"),
        (((0, A, None, 1), (0, A, None, 1)), "row repeated"),
        (((0, A, None, 1), (1, A, B, 1)), "two parents"),
    ],
)
def test_a_snapshot_that_cannot_be_true_is_refused_and_changes_nothing(rows: tuple, fault: str) -> None:
    r, journal = replica(), Journal(0, 1)
    r.receive(journal.write(stored((1,))), 0)
    before = r.save()
    r.receive(PoolMessage(node=0, incarnation=1, seq=9, body=Snapshot(as_of_seq=9, rows=rows)), 1)
    assert r.save() == before
    assert r.counters[f"snapshot_rejected: {fault}"] == 1


def test_what_is_no_hash_node_or_tier_is_counted() -> None:
    r, journal = replica(), Journal(0, 1)
    r.receive(journal.write(BlocksStored(tier=0, parent=None, hashes=(A, b"short", B))), 0)
    r.receive(journal.write(BlocksStored(tier=-1, parent=None, hashes=(A,))), 0)
    r.receive(Journal(7, 1).write(stored((0,))), 0)
    assert r.rows(0) == ((0, A, None, 1),)
    assert (r.counters["malformed"], r.counters["unknown_node"]) == (2, 1)


def test_a_guess_serves_a_burst_and_expires_unless_confirmed() -> None:
    r, journal = replica(), Journal(0, 1)
    r.receive(journal.heartbeat(), 0)
    r.guess(0, 0, None, (A, B), until_us=10)
    assert kit.depths(r.store, (0, 0)) == {(0, 0): 2}
    r.receive(journal.write(stored((0,))), 1)
    r.expire(10)
    assert kit.depths(r.store, (0, 0)) == {(0, 0): 1}
    assert (r.counters["guess_confirmed"], r.counters["guess_expired"]) == (1, 1)


def test_of_what_is_announced_the_part_that_was_guessed_is_one_copy() -> None:
    r, journal = replica(), Journal(0, 1)
    r.guess(0, 0, None, (A,), until_us=10)
    r.receive(journal.write(BlocksStored(tier=0, parent=None, hashes=(A, B))), 1)
    assert r.rows(0) == ((0, A, None, 1), (0, B, A, 1)) == r.store.rows(0)
    r.expire(10)
    assert r.store.rows(0) == ((0, A, None, 1), (0, B, A, 1))
    assert (r.counters["guess_confirmed"], r.counters["guess_expired"]) == (1, 0)


def test_a_guess_made_anew_lasts_as_long_as_the_later_one_and_is_one_copy() -> None:
    r = replica()
    r.guess(0, 0, None, (A, B), until_us=10)
    r.guess(0, 0, None, (A,), until_us=20)
    r.expire(10)
    assert kit.depths(r.store, (0, 0)) == {(0, 0): 1}
    r.expire(20)
    assert kit.depths(r.store, (0, 0)) == {}
    assert r.store.entry_count() == 0
    assert r.counters["guess_expired"] == 2


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_bounded_index_lost_of_a_guess_is_there_again_once_the_node_says_so(compiled: bool) -> None:
    """A guess is only confirmed where it still is: here another one had displaced the end of it."""
    r, journal = Replica(FlatIndex(blocks_max=2, compiled=compiled).new_store(1), 1), Journal(0, 1)
    r.guess(0, 0, None, (A, B), until_us=10)
    r.guess(0, 0, A, (kit.block((0, 1)),), until_us=10)
    assert kit.depths(r.store, (0, 0)) == {(0, 0): 1}
    r.receive(journal.write(BlocksStored(tier=0, parent=None, hashes=(A, B))), 1)
    assert kit.depths(r.store, (0, 0)) == {(0, 0): 2}
    r.expire(10)
    assert r.store.rows(0) == ((0, A, None, 1), (0, B, A, 1))


def main(steps: int) -> None:
    """`python -m tests.index.test_replica 100000`: the walk for long, in parts with seeds of their own; raises if wrong."""
    total: Counter[str] = Counter()
    for seed in range(-(-steps // 10_000)):
        total.update(walk(seed=100 + seed, steps=min(steps, 10_000)).anomalies())
    print(
        f"{steps} steps, each checked on {len(KINDS)} replicas: nothing wrong, all converged; {dict(sorted(total.items()))}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
