"""The program that test_mpi.py starts on real ranks: `python -m tests.driver.job <scenario> <output folder>`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Segment
from kvshare_research.driver.cluster import Cluster, Played, RunBroken
from kvshare_research.driver.mpi import launch
from kvshare_research.launch import World

from .kit import GROUP_SCOPE, TestAssembly, directory, prompt

ENGINE = {"engine": {"pool_bytes": 4 << 20}}
BLOCK_BYTES = 2 * 2 * 2 * 8 * 16 * 4  # layers, K and V, heads, dim, tokens, fp32
TOKENS = 16 * 12 + 5  # 12 full blocks and a tail


def _write(folder: Path, name: str, played: Played) -> None:
    row: dict[str, Any] = {
        "outcomes": played.outcomes, "counters": played.counters, "complete": played.complete,
        "elapsed_us": played.elapsed_us, "arrived": played.arrived_count, "lost": played.lost,
    }  # fmt: skip
    (folder / f"{name}.json").write_bytes(msgspec.json.encode(row))
    for machine, log in played.logs.items():
        (folder / f"{name}.{machine}.log").write_bytes(log)


def _cases(cluster: Cluster, folder: Path) -> None:
    """First computed on node 0, then wanted on node 1, under different circumstances."""
    engines = cluster.load(ENGINE)
    (folder / "engines.json").write_bytes(msgspec.json.encode(engines))
    on = [prompt(1, TOKENS, request_id=i, executor=int(i > 0), tenant=1 + (i == 1)) for i in range(3)]
    cases: dict[str, dict[str, Any]] = {
        "pull": {},
        "split": {"front_blocks": 3},
        "flipped": {"fault": {"node": 0, "flip": 0}},
        "revoked": {"revoked_at": 0},
        "late": {"fault": {"node": 0, "hold": True}, "deadline_us": 300_000},
        "padded": {"pad_us": 400_000},
        "emulated": {"link": {"rtt_us": 40_000, "rate_bits_per_s": 50_000_000, "label": "emulated"}},
    }
    # Other tokens under the hashes of the first prompt, wanted where its blocks are and where they are not; `blind`: with
    # its marks too. And what they give without any of this.
    others = [prompt(2, TOKENS, request_id=i, executor=2 - i, tenant=2) for i in (1, 2)]
    stolen = on[0][2]
    for name, chains in (("alone", {}), ("collided", {"hashes": stolen.hashes}), ("blind", vars_of(stolen))):
        cluster.reset({}, record=True)
        asked = [(at, request, replace(made, **chains), tokens) for at, request, made, tokens in others]
        _write(folder, name, cluster.play_idle([on[0], *asked]))
    for name, config in cases.items():
        cluster.reset(config, record=True)
        _write(folder, name, cluster.play_idle(on))
    _write(folder, "last_fetch", cluster.play_idle([prompt(9, 40, request_id=7, executor=1)]))
    trips = cluster.measure_link(0, 1, payload_bytes=0, repeats=2)
    bulk = cluster.measure_link(0, 1, payload_bytes=100_000, repeats=2)
    prefill = cluster.measure_prefill(1, [(0, 64), (32, 64)], repeats=2, seed=3)
    (folder / "measured.json").write_bytes(msgspec.json.encode([trips, bulk, prefill]))
    _prefetched(cluster, folder)
    told: list[tuple[int, int]] = []
    cluster.reset({}, record=True)
    burst = [(i * 2000, *prompt(i % 4, 100 + i, request_id=100 + i, executor=i % 2)[1:]) for i in range(12)]
    changed = cluster.router.directory.revoked(2, 1) if cluster.router else directory()
    event = _directory_changed(changed)
    played = cluster.play(burst, progress=lambda done, of: told.append((done, of)), at=[(5000, event)])
    _write(folder, "burst", played)
    assert cluster.router is not None
    cluster.wait_until(cluster.router.revocation_complete, "hear that the revocation is everywhere")
    (folder / "told.json").write_bytes(msgspec.json.encode(told))


def _prefetched(cluster: Cluster, folder: Path) -> None:
    """Asked for twice from node 1 and computed on node 0; then, once nothing is on its way, wanted on node 1."""
    limits = {"price_ps_per_byte": 0, "inflight_bytes_max": 1 << 30, "horizon_us": 60_000_000}
    cluster.reset({"prefetch": {"scope": "tenant", "proposals_max": 1, "probability_min": 0.1, **limits}}, record=True)
    parts = (Segment(scope_id=GROUP_SCOPE, token_count=TOKENS - 5), Segment(scope_id=GROUP_SCOPE, token_count=5))
    asked = [prompt(1, TOKENS, request_id=20 + i, executor=int(i > 1)) for i in range(3)]
    asked = [(at, replace(r, ingress=1, segments=parts), made, tokens) for at, r, made, tokens in asked]
    _write(folder, "foreseen", cluster.play_idle(asked[:2]))
    router = cluster.router
    if router is not None and router.foresight is not None:
        foresight = router.foresight
        cluster.wait_until(lambda: not foresight.open, "hear that the prefetch is over")
    _write(folder, "prefetched", cluster.play_idle(asked[2:]))


def vars_of(chain: Any) -> dict[str, bytes]:
    return {"hashes": chain.hashes, "marks": chain.marks}


def _stale(cluster: Cluster, folder: Path) -> None:
    """Blocks leave a small pool, and what the router should hear of it is lost; then the index mends itself."""
    cluster.load({"engine": {"pool_bytes": 20 * BLOCK_BYTES}})
    evicting = [
        prompt(s, TOKENS, request_id=i, executor=n) for i, (s, n) in enumerate([(1, 0), (2, 0), (1, 1), (2, 1), (1, 0)])
    ]
    cluster.reset({"lose": "removals"}, record=True)
    _write(folder, "evicted", cluster.play_idle(evicting))
    mixed = [prompt(i % 5, TOKENS, request_id=i, executor=(i * 7 // 3) % 2) for i in range(16)]
    cluster.reset({"lose": "every other"}, record=True)
    _write(folder, "lossy", cluster.play_idle(mixed))
    assert cluster.router is not None
    views = cluster.router.replica.views
    heard = [view.heard_us or 0 for view in views]

    def mended() -> bool:
        """A heartbeat that was sent after the last entry has come from each, and nothing is missing."""
        return all((v.heard_us or 0) > at + 400_000 and not v.behind for v, at in zip(views, heard, strict=True))

    cluster.wait_until(mended, "hear what was lost")
    rows = [[row[1].hex() for row in cluster.router.replica.rows(n)] for n in range(cluster.node_count)]
    (folder / "rows.json").write_bytes(msgspec.json.encode([rows, dict(cluster.router.replica.counters)]))


def _directory_changed(changed: Any) -> Any:
    from kvshare_research.core.messages import DirectoryChanged

    return DirectoryChanged(directory=changed)


def _broken(cluster: Cluster, folder: Path) -> None:
    """Node 1 has a fault; what came before is still written."""
    cluster.load(ENGINE)
    cluster.reset({"raise_at": 1})
    on = [prompt(i, 100, request_id=i, executor=i % 2) for i in range(6)]
    try:
        cluster.play_idle(on)
    except RunBroken as error:
        _write(folder, "partial", error.partial)
        raise


def _endless(cluster: Cluster, folder: Path) -> None:
    """Plays until interrupted."""
    cluster.load(ENGINE)
    cluster.reset({})
    first = prompt(1, 100, request_id=0, executor=0)
    (folder / "started").touch()
    schedule = [first, (10**9, replace(first[1], request_id=1), *first[2:])]
    try:
        cluster.play(schedule)
    except RunBroken as error:
        _write(folder, "partial", error.partial)
        raise


def _killed(cluster: Cluster, folder: Path) -> None:
    """Node 1, where unpinned requests go, is killed the moment it has its second; one of its four is pinned to it."""
    cluster.load(ENGINE)
    cluster.hearing.silence_us = 5_000_000
    cluster.reset({"kill_at": 1}, record=True)
    on = [prompt(i % 3, 100 + i, request_id=i, executor=(0, None, 1, None, 0, None)[i]) for i in range(6)]
    _write(folder, "first", cluster.play(on))
    cluster.reset({}, record=True)
    _write(folder, "second", cluster.play([prompt(1, 90, request_id=i, executor=None) for i in range(10, 13)]))


def _misconfigured(cluster: Cluster, folder: Path) -> None:
    raise ConfigError("`selector` is `cheepest`; did you mean `cheapest`?")


def _no_engine(cluster: Cluster, folder: Path) -> None:
    cluster.load({"engine": {"pool_bytes": 0}})


def _nothing(cluster: Cluster, folder: Path) -> None:
    """Loads nothing, plays nothing; the ranks leave one after the other."""


def _finalize_then_linger(rank: int) -> None:
    from mpi4py import MPI

    finalize = MPI.Finalize

    def late() -> None:
        finalize()
        time.sleep(0.2 * rank)

    MPI.Finalize = late


SCENARIOS = {
    "nothing": _nothing, "cases": _cases, "stale": _stale, "broken": _broken, "killed": _killed, "endless": _endless, "misconfigured": _misconfigured, "no_engine": _no_engine,
}  # fmt: skip


if __name__ == "__main__":
    scenario, out = SCENARIOS[sys.argv[1]], Path(sys.argv[2])

    def main(cluster: Cluster) -> None:
        scenario(cluster, out)

    world = World()
    code = launch(main, TestAssembly())
    if scenario is _nothing:
        _finalize_then_linger(world.rank)
    world.leave(code)
