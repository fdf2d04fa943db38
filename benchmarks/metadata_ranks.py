"""The price of metadata on real clocks: real ranks, the tiny engine, and pool events that are held back for a while.

    python -m benchmarks.metadata_ranks        # starts three ranks itself; about a minute

Conversations take turns, one request at a time, entering at one node after the other. Each turn's prompt is the one
before and some blocks more, so that what is not yet visible where it stands is computed again. `late`: events reach the
router so much later, and nothing else changes. `guessed`: the router expects the blocks from the moment it routes.
`registered first`: an answer leaves its worker only with the events before it, so that whoever has it finds its blocks;
what that costs is in the TTFT. `lag` columns: from the worker's word to the router's index, on the clock that all ranks
of this host share, while the workers compute.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvshare_research.config import plain
from kvshare_research.core.nouns import MissReason, Request, Segment
from kvshare_research.core.poollog import BlocksStored, Heartbeat
from kvshare_research.driver.assembly import Config
from kvshare_research.driver.cluster import Cluster, Played
from kvshare_research.driver.mpi import launch
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace, chain
from kvshare_research.launch import MpiDriver, World, inside_mpi, rank_command, run_ranks
from kvshare_research.study.assembly import StudyAssembly, parties
from kvshare_research.transport import wire
from kvshare_research.transport.mpi import Channel, Endpoint, Received

from . import settings

BLOCK, PUBLIC = 16, 0
MODES = ("late", "guessed", "registered first")
GUESS_US = 2_000_000


@dataclass
class Settings:
    """Conversations of `turns` turns, which each add `turn_blocks` blocks to an opening of `first_blocks`."""

    conversations: int = 3
    turns: int = 14
    first_blocks: int = 16
    turn_blocks: int = 4
    lags_ms: list[float] = field(default_factory=lambda: [0.0, 10.0, 100.0, 1000.0])
    ranks: int = 3
    seed: int = 1
    out: str = "outputs/benchmarks/metadata_ranks.json"


class Late:
    """A worker's endpoint that holds words to the router back, and writes down when each entry of its log was said."""

    def __init__(self, inner: Endpoint, lag_s: float, holds_all: bool, told: Any) -> None:
        self.inner, self._lag_s, self._holds_all, self._told = inner, lag_s, holds_all, told
        self._held: deque[tuple[float, int, Channel, Any]] = deque()

    def send(self, rank: int, channel: Channel, data: Any) -> None:
        message = wire.decode(data).message if channel == Channel.CONTROL and rank == 0 else None
        is_event = isinstance(message, wire.Deliver) and message.kind == "PoolChanged"
        if isinstance(message, wire.Deliver) and is_event:
            event: Any = message.event()
            said = event.message
            beat, blocks = isinstance(said.body, Heartbeat), getattr(said.body, "hashes", ())
            stored = len(blocks) if isinstance(said.body, BlocksStored) else 0
            row = [said.node, said.incarnation, said.seq, time.monotonic_ns() // 1000, len(data), stored, beat]
            self._told.write(json.dumps(row) + "\n")
            self._told.flush()
        if self._lag_s and (is_event or (self._holds_all and isinstance(message, wire.Deliver))):
            self._held.append((time.monotonic() + self._lag_s, rank, channel, data))
        else:
            self.inner.send(rank, channel, data)

    def poll(self) -> list[Received]:
        while self._held and self._held[0][0] <= time.monotonic():
            self.inner.send(*self._held.popleft()[1:])
        return self.inner.poll()

    def unsent_bytes(self) -> int:
        return self.inner.unsent_bytes()

    def drop(self, rank: int) -> None:
        self._held = deque(held for held in self._held if held[1] != rank)
        self.inner.drop(rank)

    def in_motion(self) -> bool:
        return self.inner.in_motion()


class Ranks:
    """The assembly of the study, with such endpoints."""

    def __init__(self) -> None:
        self._study = StudyAssembly()
        self.engine, self.worker = self._study.engine, self._study.worker
        self.router, self.link, self.tap = self._study.router, self._study.link, self._study.tap

    def wrap(self, endpoint: Endpoint, config: Config, node: int) -> Endpoint:
        given = config["metadata"]
        told = open(Path(given["folder"]) / f"{given['case']}.{node}.jsonl", "a")  # noqa: SIM115
        return Late(endpoint, given["lag_s"], given["mode"] == "registered first", told)


class Seen:
    """The router, and when each entry was in its index."""

    def __init__(self, router: Any) -> None:
        self.router, self.times_us = router, {}

    def handle(self, event: Any, now_us: int) -> Any:
        effects = self.router.handle(event, now_us)
        message = getattr(event, "message", None)
        if message is not None and not isinstance(message.body, Heartbeat):
            self.times_us.setdefault((message.node, message.incarnation, message.seq), time.monotonic_ns() // 1000)
        return effects

    def __getattr__(self, name: str) -> Any:
        return getattr(self.router, name)


def turns_of(given: Settings, config: Config, cluster: Cluster, number: int) -> list[Any]:
    """The arrivals of a case: turn by turn, one of each conversation after the other."""
    capacity = min(row.capacity_blocks for row in cluster.engines)
    directory, _ = parties(config, capacity_blocks=capacity, block_bytes=cluster.engines[0].block_bytes)
    ring = KeyRing(RootSecret.from_seed(given.seed))
    space = ModelSpace(model="tiny", dtype="fp32", block_tokens=BLOCK)
    longest = (given.first_blocks + given.turns * given.turn_blocks) * BLOCK
    rng = np.random.default_rng(given.seed)
    texts = [rng.integers(0, 256, longest).astype(np.uint32) for _ in range(given.conversations)]
    arrivals = []
    for turn in range(given.turns):
        for text in texts:
            tokens = text[: (given.first_blocks + turn * given.turn_blocks) * BLOCK + 1]
            segments = (Segment(scope_id=PUBLIC, token_count=len(tokens)),)
            made = chain(tokens, segments, (PUBLIC,), directory=directory, ring=ring, space=space)
            request = Request(
                request_id=(number << 32) + len(arrivals), tenant_id=1, segments=segments, output_tokens_max=2,
                ingress=len(arrivals) % cluster.node_count, arrival_us=0,
            )  # fmt: skip
            arrivals.append((0, request, made, tokens))
    return arrivals


def row_of(played: Played, seen: Seen, folder: Path, case: str, loaded_s: float) -> dict[str, float]:
    """What came of a case."""
    outcomes = played.outcomes
    said = [json.loads(line) for path in folder.glob(f"{case}.*.jsonl") for line in path.read_text().splitlines()]
    entries = [row for row in said if not row[6]]
    lags = [seen.times_us[n, i, s] - at for n, i, s, at, *_ in entries if (n, i, s) in seen.times_us]
    stored = sum(row[5] for row in entries)
    missed: Counter[int] = Counter()
    for outcome in outcomes:
        missed.update(dict(outcome.missed))
    prompt = sum(o.prompt_tokens for o in outcomes)
    beats = [row[4] for row in said if row[6]]
    return {
        "reused_ratio": 1 - sum(o.computed_tokens for o in outcomes) / prompt,
        "stale_ratio": missed[int(MissReason.STALE)] / prompt,
        "ttft_p50_ms": float(np.median([o.ttft_us for o in outcomes])) / 1e3,
        "lag_p50_us": float(np.median(lags)) if lags else float("nan"),  # nothing was visible before the end
        "lag_p99_us": float(np.percentile(lags, 99)) if lags else float("nan"),
        "messages_per_block": len(entries) / stored,
        "bytes_per_block": sum(row[4] for row in entries) / stored,
        "heartbeat_bytes_per_s": sum(beats) / loaded_s,
        "token_checksum": float(sum(sum(o.output_tokens) for o in outcomes)),
    }


def played_cases(given: Settings, base: dict[str, Any], cluster: Cluster, folder: Path) -> dict[str, dict[str, float]]:
    cluster.load(base)
    rows: dict[str, dict[str, float]] = {}
    for number, (mode, lag_ms) in enumerate((m, lag) for m in MODES for lag in given.lags_ms):
        case = f"{mode}, {lag_ms:g} ms"
        told = {"folder": str(folder), "case": number, "mode": mode, "lag_s": lag_ms / 1e3}
        limits = dict(base["limits"]) | {"guess_us": GUESS_US if mode == "guessed" else 0}
        config = base | {"limits": limits, "metadata": told}
        cluster.reset(config)
        seen: Any = Seen(cluster.router)
        cluster.router = seen
        started = time.monotonic()
        played = cluster.play_idle(turns_of(given, config, cluster, number))
        rows[case] = row_of(played, seen, folder, str(number), time.monotonic() - started)
    assert len({row.pop("token_checksum") for row in rows.values()}) == 1, "tokens differ between cases"
    return rows


def text_of(rows: dict[str, dict[str, float]]) -> str:
    head = f"{'mode, lag added':<26}{'reused':>8}{'stale':>7}{'TTFT p50 ms':>13}{'lag p50 us':>12}{'lag p99 us':>12}"
    lines = [head + f"{'messages/block':>16}{'bytes/block':>13}{'heartbeat B/s':>15}"]
    for name, r in rows.items():
        lines.append(
            f"{name:<26}{r['reused_ratio']:>8.1%}{r['stale_ratio']:>7.1%}{r['ttft_p50_ms']:>13.2f}"
            f"{r['lag_p50_us']:>12.0f}{r['lag_p99_us']:>12.0f}{r['messages_per_block']:>16.3f}"
            f"{r['bytes_per_block']:>13.1f}{r['heartbeat_bytes_per_s']:>15.0f}"
        )
    return "\n".join(lines)


def composed() -> dict[str, Any]:
    from hydra import compose, initialize_config_dir

    conf = str(Path(__file__).parents[1] / "conf")
    with initialize_config_dir(conf, version_base="1.3"):
        return plain(compose("config", ["engine=tiny", "index=flat", "selector=route_to_longest_prefix"]))


def main() -> int:
    given = settings.given(Settings)
    if not inside_mpi():
        command, env = rank_command(MpiDriver(), given.ranks, "benchmarks.metadata_ranks", sys.argv[1:])
        return run_ranks(command, env)

    def lead(cluster: Cluster) -> None:
        with tempfile.TemporaryDirectory() as folder:
            rows = played_cases(given, composed(), cluster, Path(folder))
        print(text_of(rows), flush=True)
        out = Path(given.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"settings": asdict(given), "rows": rows}, indent=1))

    World().leave(launch(lead, Ranks()))


if __name__ == "__main__":
    sys.exit(main())
