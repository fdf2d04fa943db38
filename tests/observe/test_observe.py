"""Streams, the fleet's account, and publisher and watcher over real sockets."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from kvshare_research.core.errors import ConfigError
from kvshare_research.events.frames import Batch, Cleared, Event, Removed, Stored, encode, seq_frame
from kvshare_research.events.sockets import Publisher
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.index.reference import ReferenceIndex
from kvshare_research.observe.fleet import Fleet, Prices
from kvshare_research.observe.stream import Apply, Replay, Stream
from kvshare_research.observe.watch import Observe, Watcher, _model

PRICES = Prices(block_bytes=1000, prefill_us_per_block=500, rtt_us=100, rate_bits_per_s=1e9)


def fleet(unit_tokens: int = 2) -> Fleet:
    return Fleet(ReferenceIndex().new_store(3), 3, unit_tokens, PRICES, KeyRing(RootSecret.from_seed(0)))


def stored(first: int, count: int, block_tokens: int = 2, prefix: int = 0, tenant: str = "", seed: int = 0) -> Stored:
    """Blocks [first, first + count) of one long prompt, hashed by an engine with its own seed."""
    hashes = tuple(seed * 1000 + prefix * 100 + i + 1 for i in range(first, first + count))
    tokens = tuple(prefix * 1000 + t for t in range(first * block_tokens, (first + count) * block_tokens))
    parent = hashes[0] - 1 if first else None
    return Stored(hashes=hashes, parent=parent, tokens=tokens, block_tokens=block_tokens, tenant=tenant)


def tell(f: Fleet, node: int, *events: Event) -> None:
    f.apply(node, Batch(time_s=0.0, events=events), now_s=0.0)


# ------------------------------------------------------------- streams
def test_frames_in_order_are_applied_and_a_restart_is_noticed() -> None:
    s = Stream(can_replay=False)
    for seq in range(100):
        assert s.live(seq, b"%d" % seq) == Apply((b"%d" % seq,), False)
    assert s.live(0, b"new") == Apply((b"new",), True)
    assert (s.next_seq, s.counters) == (1, {"restarted": 1, "lost": 0})


def test_a_gap_is_replayed_and_live_frames_wait() -> None:
    s = Stream(can_replay=True)
    s.live(0, b"0")
    assert s.live(3, b"3") == Replay(1)
    assert s.live(4, b"4") is None
    assert s.replayed([(1, b"1"), (2, b"2"), (3, b"3")]) == Apply((b"1", b"2", b"3", b"4"), False)
    assert s.counters == {"gaps": 1, "replayed": 3, "repeated": 1, "lost": 0}


def test_a_gap_older_than_the_journal_means_starting_over() -> None:
    s = Stream(can_replay=True)
    s.live(0, b"0")
    s.live(9, b"9")
    assert s.replayed([(7, b"7"), (8, b"8"), (9, b"9")]) == Apply((b"7", b"8", b"9"), True)
    assert s.counters["lost"] == 6


def test_who_joins_late_asks_from_the_beginning() -> None:
    assert Stream(can_replay=True).live(57, b"") == Replay(0)
    without = Stream(can_replay=False)
    without.live(57, b"")
    assert without.counters["lost"] == 57


def test_a_restart_that_is_seen_late_is_replayed_from_its_start() -> None:
    s = Stream(can_replay=True)
    for seq in range(5):
        s.live(seq, b"")
    assert s.live(2, b"2") == Replay(0)
    assert s.replayed([(0, b"0"), (1, b"1")]) == Apply((b"0", b"1", b"2"), True)


# ------------------------------------------------------------- the account
def test_engines_with_other_seeds_and_block_sizes_meet_in_the_tokens() -> None:
    f = fleet()
    tell(f, 0, stored(0, 4, seed=1))
    tell(f, 1, stored(0, 2, block_tokens=4, seed=2))
    report = f.report()
    assert (report["distinct_blocks"], report["copies_per_block"]) == (4, 2.0)
    row = report["tenants"]["(not told)"]
    assert (row["stored_blocks"], row["duplicate_blocks"]) == (8, 4)
    assert row["sharing_would_have_saved_s"] == pytest.approx((4 * 500 - (100 + 4 * 8)) / 1e6)


def test_a_block_size_or_a_count_of_tokens_that_does_not_fit_is_said_and_not_taken_for_no_sharing() -> None:
    f = fleet()
    tell(f, 0, stored(0, 2, block_tokens=3), Stored(hashes=(1,), parent=None, tokens=(7,), block_tokens=2))
    assert f.counters == {"block size 3 is no multiple of 2": 1, "stored with other tokens than it has blocks": 1}
    assert f.report()["distinct_blocks"] == 0


def test_blocks_of_two_models_never_meet() -> None:
    """A topic may name the model; what one model computed is no duplicate of another's."""
    assert [_model(topic) for topic in (b"kv@pod-1@org/m", b"kv-events", b"", b"kv@pod")] == ["org/m", "", "", ""]
    f = fleet()
    for node, model in enumerate(("a", "b", "a")):
        f.apply(node, Batch(time_s=0.0, events=(stored(0, 2),)), 0.0, model)
    report = f.report()
    assert (report["distinct_blocks"], report["tenants"]["(not told)"]["duplicate_blocks"]) == (4, 2)


def test_blocks_told_without_tokens_meet_where_publishers_hash_alike() -> None:
    """Our own private blocks: two of our nodes use one key, an engine with another seed does not."""
    f = fleet()
    for node, hashes in ((0, (1, 2)), (1, (1, 2)), (2, (8, 9))):
        tell(f, node, Stored(hashes=hashes, parent=None, tokens=(), block_tokens=4))
    report = f.report()
    assert (report["held_blocks"], report["distinct_blocks"]) == ([4, 4, 4], 8)
    assert report["tenants"]["(not told)"]["duplicate_blocks"] == 4
    tell(f, 1, Removed(hashes=(1,)))
    assert f.report()["held_blocks"] == [4, 2, 4]


def test_tenants_are_told_apart_and_inherit_along_the_chain() -> None:
    f = fleet()
    tell(f, 0, stored(0, 2, tenant="a"), stored(2, 2))
    tell(f, 1, stored(0, 4, tenant="b", seed=1))
    tenants = f.report()["tenants"]
    assert {name: (row["stored_blocks"], row["duplicate_blocks"]) for name, row in tenants.items()} == {
        "a": (4, 0),
        "b": (4, 0),
    }


def test_deep_blocks_wait_for_their_roots_and_are_grafted() -> None:
    f = fleet()
    tell(f, 0, stored(2, 2), stored(1, 1))
    assert f.report()["waiting_for_parents"][0] == 2
    tell(f, 0, stored(0, 1))
    report = f.report()
    assert (report["distinct_blocks"], report["waiting_for_parents"][0]) == (4, 0)
    assert f.counters["grafted"] == 2


def test_copies_tiers_unknown_removals_and_clears() -> None:
    f = fleet()
    block, on_host = stored(0, 1), Stored(hashes=(1,), parent=None, tokens=(0, 1), block_tokens=2, tier=1)
    tell(f, 0, block, block, on_host)
    tell(f, 0, Removed(hashes=(77, 1)))
    assert f.store.entry_count() == 2
    tell(f, 0, Removed(hashes=(1, 1)), stored(0, 1, prefix=2))
    assert f.counters["unknown block removed"] == 2
    assert f.store.entry_count() == 2  # on the host, and the one after the bad removal
    tell(f, 0, Cleared(tier=0))
    assert f.store.entry_count() == 1
    tell(f, 0, Cleared())
    assert (f.store.entry_count(), f.report()["held_blocks"][0]) == (0, 0)


# ------------------------------------------------------------- over sockets
ANY = "tcp://127.0.0.1:*"


@pytest.fixture
def pair() -> Iterator[tuple[Publisher, Watcher]]:
    publisher = Publisher(ANY, ANY)
    given = Observe(
        endpoint=publisher.endpoint, replay=publisher.replay_endpoint, unit_tokens=2, nodes_max=4, block_bytes=1000,
        prefill_us_per_token=250, rtt_us=100, rate_mbit=1000, replay_timeout_s=60.0,
    )  # fmt: skip
    watcher = Watcher(given, ReferenceIndex(), seed=0)
    yield publisher, watcher
    watcher.close()
    publisher.close()


def until(
    done: Callable[[], bool], *, publisher: Publisher, watcher: Watcher, between: Callable[[], object] = lambda: None
) -> None:
    """Both sides run until it is so; a generous bound, not a wait, keeps a failure from hanging."""
    give_up = time.monotonic() + 30
    while not done():
        assert time.monotonic() < give_up, watcher.report()
        between()
        publisher.answer()
        watcher.step(wait_ms=5)


def joined(publisher: Publisher, watcher: Watcher) -> None:
    """The subscription stands: something that was sent has come."""
    give_up = time.monotonic() + 30
    while not watcher.counters["batches"]:
        assert time.monotonic() < give_up
        publisher.publish([], 0.0)
        watcher.step(wait_ms=5)
        publisher.answer()


def test_a_watcher_that_joins_late_and_loses_frames_has_everything(pair: tuple[Publisher, Watcher]) -> None:
    publisher, watcher = pair
    publisher.publish([stored(0, 2)], 0.0)  # before anybody listens
    joined(publisher, watcher)
    publisher.skip(encode(0.0, [stored(2, 2)]))
    publisher.publish([stored(4, 1), Removed(hashes=(99,))], 0.0)
    until(lambda: watcher.report()["distinct_blocks"] == 5, publisher=publisher, watcher=watcher)
    (stream,) = watcher.report()["streams"].values()
    assert stream["gaps"] >= 1
    assert not stream.get("lost")


def test_bad_frames_are_counted_and_the_rest_goes_on(pair: tuple[Publisher, Watcher]) -> None:
    publisher, watcher = pair
    joined(publisher, watcher)
    publisher._live.send_multipart([b"", b"short", b""])
    publisher._live.send_multipart([b"only one"])
    publisher.publish_payload(b"\xc1 not msgpack")
    publisher.publish([stored(0, 1)], 0.0)
    until(lambda: watcher.report()["distinct_blocks"] == 1, publisher=publisher, watcher=watcher)
    assert watcher.counters["frame of another shape"] == 2
    assert watcher.counters["frame that cannot be read"] == 1


def test_a_restarted_engine_is_forgotten_first(pair: tuple[Publisher, Watcher]) -> None:
    publisher, watcher = pair
    publisher.publish([stored(0, 3)], 0.0)
    joined(publisher, watcher)
    until(lambda: watcher.report()["distinct_blocks"] == 3, publisher=publisher, watcher=watcher)
    publisher._seq = 0
    publisher._kept.clear()
    publisher.publish([stored(0, 1, prefix=1)], 0.0)
    until(lambda: watcher.report()["distinct_blocks"] == 1, publisher=publisher, watcher=watcher)

    assert watcher.report()["distinct_blocks"] == 1, "what the engine held before its restart is gone"


def test_an_endpoint_that_never_answers_is_said() -> None:
    silent = "tcp://127.0.0.1:9"
    given = Observe(endpoint=silent, block_bytes=1, prefill_us_per_token=1.0, rtt_us=1, rate_mbit=1.0)
    watcher = Watcher(given, ReferenceIndex(), seed=0)
    watcher.step(wait_ms=1)
    assert watcher.report()["silent"] == [silent]
    watcher.close()


def test_an_account_that_did_not_change_is_told_once() -> None:
    given = ["endpoint=tcp://127.0.0.1:9", "stop_after_s=0.5", "report_every_s=0.1"]
    told = subprocess.run(
        [sys.executable, "-m", "kvshare_research.observe", *(f"observe.{words}" for words in given)],
        capture_output=True, check=True, text=True, timeout=100,
    )  # fmt: skip
    assert told.stdout.count("silent: tcp://127.0.0.1:9") == 1


def test_a_replay_that_never_ends_is_given_up_and_counted() -> None:
    """The publisher never answers; after the timeout what came live is applied, and what was missed counts as lost."""
    clock = [0.0]
    publisher = Publisher(ANY)
    given = Observe(
        endpoint=publisher.endpoint, replay="tcp://127.0.0.1:9", unit_tokens=2, nodes_max=4, block_bytes=1000,
        prefill_us_per_token=250, rtt_us=100, rate_mbit=1000, replay_timeout_s=5.0,
    )  # fmt: skip
    watcher = Watcher(given, ReferenceIndex(), seed=0, clock_s=lambda: clock[0])
    publisher.skip(encode(0.0, [stored(0, 1)]))
    until(
        lambda: bool(watcher._sources[0].streams),
        publisher=publisher,
        watcher=watcher,
        between=lambda: publisher.publish([stored(0, 1, prefix=1)], 0.0),
    )
    assert watcher.report()["distinct_blocks"] == 0, "it waits for the answer"
    clock[0] = 5.1
    watcher.step(wait_ms=1)
    report = watcher.report()
    assert report["distinct_blocks"] == 1
    assert report["frames"]["replay without an end"] == 1
    assert next(iter(report["streams"].values()))["lost"] >= 1
    watcher.close()
    publisher.close()


def test_a_port_in_use_and_a_wrong_address_are_one_line() -> None:
    publisher = Publisher(ANY)
    with pytest.raises(ConfigError, match=r"events.endpoint .* cannot be bound: Address already in use"):
        Publisher(publisher.endpoint)
    publisher.close()
    given = Observe(endpoint="nowhere", block_bytes=1, prefill_us_per_token=1.0, rtt_us=1, rate_mbit=1.0)
    with pytest.raises(ConfigError, match=r"observe.endpoint `nowhere` is no address"):
        Watcher(given, ReferenceIndex(), seed=0)


def test_the_replay_answer_has_the_engines_shape() -> None:
    publisher = Publisher(ANY, ANY, kept_max=2)
    for _ in range(3):
        publisher.publish([Cleared()], 0.0)
    client = zmq.Context.instance().socket(zmq.DEALER)
    client.connect(publisher.replay_endpoint)
    client.send_multipart([b"", seq_frame(0)])
    assert publisher.answer(wait_ms=10_000) == 1
    frames = [client.recv_multipart() for _ in range(3)]
    assert [f[1] for f in frames] == [seq_frame(1), seq_frame(2), seq_frame(-1)]
    assert frames[-1] == [b"", seq_frame(-1), b""]
    client.close(linger=0)
    publisher.close()
