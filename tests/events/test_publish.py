"""Workers that publish: on real ranks a watcher ends with exactly the blocks they hold; what is told, and what never."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.journal import Journal
from kvshare_research.core.messages import BlocksStored, TierCleared
from kvshare_research.core.rights import Scope
from kvshare_research.core.worker import Worker
from kvshare_research.driver.assembly import assembly_at
from kvshare_research.driver.log import read_log
from kvshare_research.events.bridge import Bridge
from kvshare_research.events.frames import Cleared, Event, Stored, hash64
from kvshare_research.events.publish import SILENCE_S, Events, Tap, of_node
from kvshare_research.index.reference import ReferenceIndex
from kvshare_research.observe.watch import Observe, Watcher
from kvshare_research.transport.wire import decode_core

from .test_bridge import CHAIN, HASHES, SECRET

ROOT = Path(__file__).parents[2]
NODES = 2


# ------------------------------------------------------------- real ranks
class Command:
    """A command of the project in its own process; `end` gives what it printed."""

    def __init__(self, module: str, *overrides: str) -> None:
        command = [sys.executable, "-m", module, *overrides]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever became of the test, nothing of it runs on."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def end(self) -> str:
        said, _ = self.process.communicate(timeout=600)
        assert self.process.returncode == 0, said
        return said


def truly_held(log: Path) -> set[int]:
    """The blocks in a worker's ledger at the end of its recorded case, as the engines' format names them."""
    read = read_log(log.read_bytes())
    worker = assembly_at(read.assembly).worker(read.config, read.place)
    assert isinstance(worker, Worker)
    for entry in read.entries:
        worker.handle(decode_core(entry.kind, entry.body), entry.now_us)
    return {hash64(b.block_hash) for b in worker.ledger.named() if b.block_hash is not None}


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(900)  # three ranks and two watchers: fifteen seconds alone, minutes where many compute
def test_watchers_of_our_ranks_end_with_exactly_what_they_hold(tmp_path: Path) -> None:
    """A pool so small that blocks leave it, several cases, two watchers: a command and one that we can look into."""
    pytest.importorskip("mpi4py")
    pytest.importorskip("torch")
    base = {"endpoint": f"ipc://{tmp_path}/live", "replay": f"ipc://{tmp_path}/again"}
    addresses = {key: tuple(of_node(at, n) for n in range(NODES)) for key, at in base.items()}
    told = [f"observe.{key}=[{','.join(at)}]" for key, at in addresses.items()]
    given = Observe(**addresses, nodes_max=4, block_bytes=1000, prefill_us_per_token=250, rtt_us=100, rate_mbit=1000)
    watcher = Watcher(given, ReferenceIndex(), seed=0)
    blocks = "[{name: idle, requests: 8, overlap: [0.5], record: true, selector: [round_robin, pull_always]}]"
    watching = Command(
        "kvshare_research.observe", *told, "index=reference", "observe.stop_after_s=600", f"observe.out={tmp_path}/out.json",
    )  # fmt: skip
    job = Command(
        "kvshare_research", "engine=tiny", "engine.pool_bytes=131072", "study=single", "study.calibration_seconds=0.1",
        f"study.blocks={blocks}", "workload.prompt_tokens=256", "events.publish=true",
        *(f"events.{key}={at}" for key, at in base.items()),
        f"output_root={tmp_path}/runs", f"cache_root={tmp_path}/cache", "plots=false",
    )  # fmt: skip
    with watching, job:
        while job.process.poll() is None:
            watcher.step(wait_ms=20)
        job.end()
        while watcher.step(wait_ms=200):
            pass
        watching.process.send_signal(2)
        watching.end()

    logs = {n: next((tmp_path / "runs").rglob(f"*pull*/node{n}.log")) for n in range(NODES)}
    held = [truly_held(logs[n]) for n in range(NODES)]
    nodes = [watcher.names[name] for name in sorted(watcher.names)]
    assert [set(watcher.fleet.nodes[n].handles) for n in nodes] == held
    assert all(len(blocks) > 10 for blocks in held)
    assert not watcher.fleet.counters["unknown block removed"] + watcher.fleet.counters["parent unknown"]
    report = json.loads((tmp_path / "out.json").read_text())
    assert [report["nodes"][name]["held_blocks"] for name in sorted(report["nodes"])] == [len(h) for h in held]
    assert not any(stream.get("lost") for stream in report["streams"].values())


def served(*tenants: str) -> Directory:
    return Directory(tenants=tenants, groups=(), scopes=(Scope(0, 0),))


def test_prompts_of_several_tenants_never_travel() -> None:
    """Refused before anything is measured, in one line."""
    events = Events(publish=True, endpoint="tcp://127.0.0.1:5557", tokens="all")
    with pytest.raises(ConfigError, match=r"`events.tokens` is `all`, but 2 tenants are served"):
        events.check(served("ann", "bob"))
    events.check(served("ann"))


# ------------------------------------------------------------- the tap
class Recorder:
    """Stands where the sockets are."""

    def __init__(self) -> None:
        self.batches: list[tuple[Event, ...]] = []

    def publish(self, events: tuple[Event, ...], time_s: float, rank: int) -> None:
        self.batches.append(events)

    def answer(self) -> None:
        pass


def tapped(clock: list[float], *, all_tokens: bool = False) -> tuple[Tap, Recorder, Journal]:
    recorder = Recorder()
    tap = Tap(recorder, Bridge(2, all_tokens=all_tokens), 0, clock_s=lambda: clock[0])  # type: ignore[arg-type]
    tap.begin()
    tap.seen(CHAIN, SECRET)
    return tap, recorder, Journal(0, 1)


def test_an_entry_is_published_once_whatever_the_router_asks_again() -> None:
    tap, recorder, journal = tapped([0.0])
    entries = [journal.write(BlocksStored(tier=0, parent=None, hashes=HASHES[:1])), journal.write(TierCleared(tier=0))]
    for message in [*entries, *journal.answer(1, 0, tuple), *journal.answer(0, 0, tuple)]:
        tap.published(message)
    assert [[type(e) for e in batch] for batch in recorder.batches] == [[Cleared], [Stored], [Cleared]]
    (moved,) = journal.answer(2, 0, tuple)  # fenced: the journal goes on in a later incarnation
    tap.published(moved)
    tap.published(journal.write(TierCleared(tier=1)))
    assert recorder.batches[-1] == (Cleared(tier=1),)


def test_in_silence_an_empty_batch_tells_how_far_the_numbers_are() -> None:
    clock = [0.0]
    tap, recorder, journal = tapped(clock)
    for clock[0] in (0.1, 0.9, SILENCE_S, SILENCE_S + 0.1):
        tap.published(journal.heartbeat())
    assert recorder.batches == [(Cleared(),), ()]


@pytest.mark.parametrize(("all_tokens", "expected"), [(False, ()), (True, (99, 98, 97, 96))])
def test_private_tokens_travel_only_where_they_are_asked_for(all_tokens: bool, expected: tuple[int, ...]) -> None:
    tap, recorder, journal = tapped([0.0], all_tokens=all_tokens)
    tap.published(journal.write(BlocksStored(tier=0, parent=HASHES[1], hashes=HASHES[2:], scope_id=7)))
    (stored,) = recorder.batches[-1]
    assert isinstance(stored, Stored)
    assert np.array_equal(stored.tokens, expected)


def test_each_node_has_an_address_of_its_own() -> None:
    assert of_node("tcp://*:5557", 3) == "tcp://*:5560"
    assert of_node("ipc:///run/kv", 1) == "ipc:///run/kv-1"
    for wrong in ("tcp://127.0.0.1:*", "tcp://host", "inproc://here", "5557", "ipc://"):
        with pytest.raises(ConfigError, match=r"`events.replay` is `.*`, expected e.g. tcp"):
            Events(publish=True, endpoint="tcp://127.0.0.1:5557", replay=wrong)


def test_what_cannot_be_bound_is_one_line_and_off_binds_nothing() -> None:
    taken = f"ipc://{ROOT}/nowhere/at/all"
    assert Events(publish=False, endpoint=taken).tap(0, 16, served("ann")) is None
    with pytest.raises(ConfigError, match=r"events.endpoint .* cannot be bound"):
        Events(publish=True, endpoint=taken).tap(0, 16, served("ann"))
