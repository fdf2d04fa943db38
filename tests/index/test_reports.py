"""What users of neighbouring systems report of event streams, and the test here that each report asks for.

Rows 13 to 31 of a survey of such reports, and what else goes wrong between publishers and an index.
"""

from __future__ import annotations

import ast
import random
from pathlib import Path

import numpy as np
import pytest

from kvshare_research.core import messages as m
from kvshare_research.core.choosing import Choosing
from kvshare_research.core.directory import Directory
from kvshare_research.core.journal import Journal
from kvshare_research.core.nouns import Action, Chain, Segment
from kvshare_research.core.poollog import PoolMessage, Snapshot
from kvshare_research.core.replica import SILENCE_US, Replica
from kvshare_research.core.rights import TENANT, Scope
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace, chain
from kvshare_research.selector.route_to_longest_prefix import RouteToLongestPrefix
from tests.core.fleet import ask, fleet, only

from . import kit, world

TESTS = Path(__file__).parents[1]
REPORTS = {
    "13 events change from positional arrays to maps, and consumers index nothing in silence": [
        "events/test_frames.py::test_both_generations_are_the_recorded_bytes",
        "events/test_frames.py::test_older_and_newer_arrays_and_unknown_fields_are_read",
        "events/test_frames.py::test_a_bad_event_is_counted_and_the_rest_of_its_batch_kept",
    ],
    "14 an engine restarts at sequence 0 and its old blocks stay for ever": [
        "index/test_replica.py::test_a_worker_that_restarts_at_seq_1_clears_what_it_held_before",
        "observe/test_observe.py::test_frames_in_order_are_applied_and_a_restart_is_noticed",
        "observe/test_observe.py::test_a_restarted_engine_is_forgotten_first",
    ],
    "15 recovery loops, because the cursor does not follow the answer": [
        "index/test_replica.py::test_recovery_happens_once_and_the_cursor_follows_the_answer",
    ],
    "16 who joins late counts as complete": [
        "index/test_replica.py::test_a_reader_that_joins_late_asks_before_it_counts_as_complete",
        "observe/test_observe.py::test_who_joins_late_asks_from_the_beginning",
        "observe/test_observe.py::test_a_watcher_that_joins_late_and_loses_frames_has_everything",
    ],
    "18 the removal of an absent block ends its batch": [
        "index/test_replica.py::test_an_unknown_removal_does_not_abort_what_follows",
        "observe/test_observe.py::test_copies_tiers_unknown_removals_and_clears",
    ],
    "19 one copy's removal drops every holder, counts go below zero": [
        "index/test_contract.py::test_one_copys_removal_leaves_the_others",
        "index/test_contract.py::test_any_order_of_changes_gives_the_longest_runs",
    ],
    "20 AllBlocksCleared is ignored": [
        "index/test_replica.py::test_clearing_one_tier_leaves_the_other_tier_and_the_other_node",
        "observe/test_observe.py::test_copies_tiers_unknown_removals_and_clears",
        "events/test_publish.py::test_an_entry_is_published_once_whatever_the_router_asks_again",
    ],
    "21 deep blocks without their roots; a restart loses the index": [
        "index/test_reports.py::test_an_index_restarted_from_an_old_snapshot_equals_its_twin_that_never_died",
        "observe/test_observe.py::test_deep_blocks_wait_for_their_roots_and_are_grafted",
        "index/test_replica.py::test_a_long_walk_never_goes_wrong_and_meets_every_anomaly",
    ],
    "22 a peer's snapshot is believed whatever it says": [
        "index/test_replica.py::test_a_snapshot_that_cannot_be_true_is_refused_and_changes_nothing",
        "index/test_reports.py::test_a_snapshot_of_a_foreign_tenant_or_block_size_answers_nobody_else",
        "index/test_reports.py::test_nobody_speaks_in_anothers_name",
    ],
    "23 a publisher is missing, and the router degrades in silence": [
        "index/test_reports.py::test_a_node_that_computes_and_never_publishes_is_counted",
        "observe/test_observe.py::test_an_endpoint_that_never_answers_is_said",
    ],
    "25 age is counted from receipt, not from the event (nothing here ages at a reader: holders say what has gone)": [
        "core/test_ledger.py::test_ttl_ends_at_its_boundary",
        "index/test_replica.py::test_a_guess_serves_a_burst_and_expires_unless_confirmed",
    ],
    "26 siblings arrive before the first event and all miss or scatter": [
        "index/test_reports.py::test_siblings_go_where_the_first_one_went",
        "core/test_fleet.py::test_siblings_that_arrive_together_compute_their_prefix_once",
        "index/test_replica.py::test_a_guess_serves_a_burst_and_expires_unless_confirmed",
    ],
    "29 concurrent writes (an index has one owner, which handles one event after the other; so its log replays)": [
        "driver/test_mpi.py::test_a_fresh_process_decides_every_log_alike",
        "driver/test_stale.py::test_after_loss_the_index_is_what_the_ledgers_hold",
    ],
    "31 a restarted peer leaves dead locations": [
        "driver/test_simulator.py::test_a_node_that_dies_and_returns_loses_no_request",
        "driver/test_stale.py::test_a_block_that_left_unheard_of_is_refused_computed_and_counted_as_stale",
        "index/test_replica.py::test_a_fenced_worker_that_lives_rejoins_with_what_it_holds",
    ],
    "another block size, hash or model; counts that do not fit": [
        "observe/test_observe.py::test_engines_with_other_seeds_and_block_sizes_meet_in_the_tokens",
        "observe/test_observe.py::test_a_block_size_or_a_count_of_tokens_that_does_not_fit_is_said_and_not_taken_for_no_sharing",
        "observe/test_observe.py::test_blocks_of_two_models_never_meet",
    ],
    "a truncated frame, one that is not msgpack, a sequence that runs backwards": [
        "events/test_frames.py::test_what_is_no_batch_is_an_error_of_the_sender",
        "observe/test_observe.py::test_bad_frames_are_counted_and_the_rest_goes_on",
        "observe/test_observe.py::test_a_restart_that_is_seen_late_is_replayed_from_its_start",
    ],
    "a port in use, an endpoint or a replay that never answers": [
        "observe/test_observe.py::test_a_port_in_use_and_a_wrong_address_are_one_line",
        "events/test_publish.py::test_what_cannot_be_bound_is_one_line_and_off_binds_nothing",
        "observe/test_observe.py::test_a_replay_that_never_ends_is_given_up_and_counted",
    ],
}  # fmt: skip


@pytest.mark.parametrize("report", REPORTS)
def test_every_report_has_its_tests(report: str) -> None:
    for name in REPORTS[report]:
        path, _, test = name.partition("::")
        tree = ast.parse((TESTS / path).read_text())
        assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name


def test_an_index_restarted_from_an_old_snapshot_equals_its_twin_that_never_died() -> None:
    """A router saves itself, hears more, dies, and misses what comes meanwhile; the journal or a snapshot makes it whole."""
    rng = random.Random(5)
    for kept_max in (1000, 10):  # the journal still has what was missed, or it does not
        w = world.World(("reference", "flat"), kept_max=kept_max, window=64)
        change(w, rng, 60)
        saved = w.replicas[1].save()
        change(w, rng, 60)
        w.replicas[1] = w.fresh("flat")
        w.replicas[1].load(saved)
        w.wires[1].clear()  # said while it was dead
        for n in range(2):
            w.heartbeat(n)
        for _ in range(4):
            for r in range(2):
                w.deliver_all(r)
        living, restarted = w.replicas
        for _ in range(1000):
            path = rng.choice(world.PATHS) + (0,) * rng.randrange(2)
            assert kit.depths(living.store, path) == kit.depths(restarted.store, path)
        assert [living.rows(n) for n in range(2)] == [restarted.rows(n) for n in range(2)]
        assert any(living.rows(n) for n in range(2))


def change(w: world.World, rng: random.Random, count: int) -> None:
    """So many changes on the workers, heard by all that live."""
    for _ in range(count):
        n, path, tier = rng.randrange(2), rng.choice(world.PATHS), rng.randrange(2)
        if rng.random() < 0.7:
            w.store(n, path, rng.randrange(3), tier)
        else:
            w.remove(n, path, tier)
        for r in range(2):
            w.deliver_all(r)


# ------------------------------------------------------------- who may be told what
TENANTS = Directory(tenants=("ann", "bob"), groups=(), scopes=(Scope(0, 0), Scope(TENANT, 1), Scope(TENANT, 2)))


def hashed(scope_id: int, block_tokens: int = 4) -> Chain:
    segments = (Segment(scope_id=scope_id, token_count=16),)
    space = ModelSpace(model="m", dtype="fp32", block_tokens=block_tokens)
    ring = KeyRing(RootSecret.from_seed(3))
    return chain(np.arange(16, dtype=np.uint32), segments, (scope_id,), directory=TENANTS, ring=ring, space=space)


def test_a_snapshot_of_a_foreign_tenant_or_block_size_answers_nobody_else() -> None:
    """The same sixteen tokens, but of another tenant, or in blocks of another size: other names, so no hit for ann."""
    told = [hashed(2), hashed(1, block_tokens=8)]
    rows = [(0, c.block_hash(i), c.block_hash(i - 1) if i else None, 1) for c in told for i in range(c.block_count)]
    replica = Replica(kit.load("reference").new_store(1), 1)
    replica.receive(PoolMessage(node=0, incarnation=1, seq=1, body=Snapshot(as_of_seq=1, rows=tuple(sorted(rows)))), 0)
    assert replica.match(hashed(1)).runs == ()
    assert [replica.match(c).runs[0].block_count for c in told] == [4, 2]


def test_nobody_speaks_in_anothers_name() -> None:
    """A snapshot of node 0 that node 1 sends is counted and dropped by the driver, before any index sees it."""
    from kvshare_research.driver.cluster import Cluster
    from kvshare_research.transport import wire
    from kvshare_research.transport.mpi import Channel, Received

    class Router:
        def __init__(self) -> None:
            self.heard: list[object] = []

        def handle(self, event: object, now_us: int) -> tuple[()]:
            self.heard.append(event)
            return ()

    cluster = Cluster(None, None, node_count=2)  # type: ignore[arg-type]
    router = Router()
    cluster.router = router  # type: ignore[assignment]
    event = m.PoolChanged(message=Journal(0, 1).heartbeat())
    data = np.frombuffer(wire.encode(0, wire.Deliver.of(event)), np.uint8)
    for rank in (1, 2):
        cluster._receive(Received(rank, Channel.CONTROL, data))
    assert len(router.heard) == 1
    assert cluster._counters["pool messages in another's name"] == 1


# ------------------------------------------------------------- silence and bursts
def test_a_node_that_computes_and_never_publishes_is_counted() -> None:
    """Nothing it says reaches the router, yet it serves; a node whose events come is not counted."""
    for lost, count in ((True, 1), (False, 0)):
        sim = fleet()
        sim.drop_event = lambda message, lost=lost: lost
        sim.tick_us = SILENCE_US // 2
        for number in range(4):
            ask(sim, number, executor=0, prefix=f"p{number}", at_us=1 + number * SILENCE_US)
        sim.run()
        assert bool(sim.router.replica.counters["silent_node"]) == bool(count)


@pytest.mark.parametrize(("guess_us", "most_together"), [(2_000_000, 7), (0, 0)])
def test_siblings_go_where_the_first_one_went(guess_us: int, most_together: int) -> None:
    """Eight equal prompts in a millisecond, events 50 ms late, a router that moves no bytes."""
    sim = fleet(4, event_delay_us=50_000, guess_us=guess_us, actions=(Action.RECOMPUTE, Action.RESIDENT, Action.ROUTE))
    sim.router.choosing = Choosing(RouteToLongestPrefix())
    for number in range(8):
        ask(sim, number, at_us=1 + number * 100)
    outcomes = sim.run()
    executors = [only(outcomes, n).executor for n in range(8)]
    together = max(executors.count(node) for node in range(4))
    assert together >= most_together
    if not guess_us:
        assert together < 7, "without guesses they scatter: the test can fail"
