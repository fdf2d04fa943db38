"""What prefetch is worth in the fleet: `python -m experiments.privacy_prefetch [tenants] [seeds] [--network]`.

Simulated: tenants with habits (composed sessions of public prefixes) ask at a node of their region, mostly the same;
every request is served there, from what is resident, pulled or computed. Each predictor moves prefixes between three
nodes through the shipped router and workers, over links of 1 Gbit/s, into pools with room. Trained predictors learn
from other tenants; with `--network` also a small network, by DP-SGD. "net" is the mean TTFT saved less the price of
what was moved in vain. "displaced" counts blocks found on a node without prefetch and not found with it.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.privacy_ttft.__main__ import BLOCK_BYTES, BLOCK_TOKENS, NODES, fleet
from kvshare_research.core.directory import Directory
from kvshare_research.core.foresight import Foresight, prefix_blocks
from kvshare_research.core.ledger import Ledger as Pool
from kvshare_research.core.nouns import Action, Chain, Request, Segment
from kvshare_research.core.ports import Prefetch
from kvshare_research.core.rights import EVERYBODY, TENANT, Scope
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.driver.simulator import Simulator
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.namespace import ModelSpace
from kvshare_research.prefetch.artefact import save, vocabulary_of
from kvshare_research.prefetch.dp_counts import DpCounts
from kvshare_research.prefetch.dp_sgd import DpSgd
from kvshare_research.prefetch.oracle import Oracle
from kvshare_research.prefetch.ppm import Ppm
from kvshare_research.privacy.sessions import make_sessions
from kvshare_research.privacy.training import train_counts, train_network
from kvshare_research.retention.lru import LruRetention
from kvshare_research.study.prompts import Hasher

NAMES, STEPS, TAIL_TOKENS, TAUGHT, GAP_US, HOME = 48, 16, 40, 4_000, 900_000, 0.8
COMMON: dict[str, Any] = {"price_ps_per_byte": 10, "inflight_bytes_max": 1 << 28, "horizon_us": 30_000_000}
PREDICTING: dict[str, Any] = {**COMMON, "proposals_max": 2, "probability_min": 0.15}


def asked(tenants: int, seed: int) -> tuple[Directory, list[tuple[Request, Chain]], tuple[bytes, ...]]:
    """The arrivals, and the names of all prefixes."""
    rng = np.random.default_rng(seed + 1)
    directory = Layered().directory(
        Directory(
            tenants=tuple(f"t{i}" for i in range(tenants)),
            groups=(),
            scopes=(EVERYBODY, *(Scope(TENANT, i + 1) for i in range(tenants))),
        )
    )
    space = ModelSpace(model="m", dtype="fp32", block_tokens=BLOCK_TOKENS)
    hasher = Hasher(tenancy=Layered(), directory=directory, ring=KeyRing(RootSecret.from_seed(seed)), space=space)
    blocks = np.clip(rng.lognormal(3.0, 0.6, NAMES).astype(int), 4, 60)
    sessions = make_sessions(TAUGHT + tenants, NAMES, STEPS, seed)[TAUGHT:]
    homes = rng.integers(NODES, size=tenants)
    rows: list[tuple[Request, Chain]] = []
    names: dict[int, bytes] = {}
    for step in range(STEPS):
        for tenant in rng.permutation(tenants).tolist():
            name = int(sessions[tenant, step])
            front = np.arange(blocks[name] * BLOCK_TOKENS, dtype=np.uint32) + 10_000 * name
            tokens = np.concatenate([front, rng.integers(1 << 20, 1 << 21, TAIL_TOKENS).astype(np.uint32)])
            segments = (
                Segment(scope_id=0, token_count=len(front)),
                Segment(scope_id=directory.scope_id(Scope(TENANT, tenant + 1)), token_count=TAIL_TOKENS),
            )
            node = int(homes[tenant]) if rng.random() < HOME else int(rng.integers(NODES))
            request = Request(
                request_id=len(rows) + 1, tenant_id=tenant + 1, segments=segments, output_tokens_max=1, ingress=node,
                executor=node, arrival_us=1 + len(rows) * GAP_US,
            )  # fmt: skip
            prompt = hasher.prompt(request, tokens, warmup=False)
            names[name] = prompt.chain.block_hash(prefix_blocks(prompt.request, prompt.chain) - 1)
            rows.append((prompt.request, prompt.chain))
    known = tuple(names.get(i, i.to_bytes(16, "big")) for i in range(NAMES))
    return directory, rows, known


def played(
    directory: Directory, rows: list[tuple[Request, Chain]], policy: Prefetch | None, capacity: int
) -> Simulator:
    sim = fleet(directory, ps_per_byte=8_000)
    actions = frozenset((Action.RECOMPUTE, Action.RESIDENT, Action.PULL))
    sim.router.policy = replace(sim.router.policy, actions=actions)
    for worker in sim.workers:
        pool = Pool(capacity_blocks=capacity, accounts=(), retention=LruRetention())
        made = type(worker)(node=worker.node, incarnation=1, policy=worker.policy, ledger=pool, directory=directory)
        sim.workers[worker.node] = made
    if policy is not None:
        sim.router.foresight = Foresight(policy)
        if isinstance(policy, Oracle):
            policy.tell(sim.router.foresight.state, rows)
    for request, chain in rows:
        sim.inject(request, chain)
    sim.run()
    return sim


def main(tenants: int, seeds: int, network: bool, capacity: int = 400_000) -> int:
    """Prints a row per predictor: means over seeds."""
    warnings.filterwarnings("ignore")
    print(f"simulated: {tenants} tenants x {STEPS} requests, {NODES} nodes, means over {seeds} seeds")
    heads = ("TTFT ms", "saved ms", "net ms", "moved MiB", "coverage", "accuracy", "waste", "displaced")
    print(f"{'predictor':28}" + "".join(f"{head:>11}" for head in heads))
    sums: dict[str, np.ndarray] = {}
    paired: dict[str, list[np.ndarray]] = {}
    for seed in range(seeds):
        directory, rows, names = asked(tenants, seed)
        taught = make_sessions(TAUGHT, NAMES, STEPS, seed)
        policies: list[tuple[str, Prefetch | None]] = [("off", None)]
        with tempfile.TemporaryDirectory() as folder:
            for epsilon in (None, 2.0):
                path = Path(folder) / f"{epsilon}"
                save(train_counts(taught, names, epsilon=epsilon, delta=1e-5, noise=SeededNoise(seed)), path)
                title = "dp_counts, no privacy" if epsilon is None else f"dp_counts, epsilon {epsilon:g}"
                policies.append((title, DpCounts(artefact=str(path), vocabulary=vocabulary_of(names), **PREDICTING)))
                if network:
                    made = train_network(taught, names, epsilon=epsilon, delta=1e-5, epochs=10, batch=256)
                    save(made, Path(folder) / f"network {epsilon}")
                    policy = DpSgd(
                        artefact=f"{folder}/network {epsilon}", vocabulary=vocabulary_of(names), **PREDICTING
                    )
                    policies.append((title.replace("counts", "sgd"), policy))
            policies += [
                ("ppm, per tenant", Ppm(scope="tenant", **PREDICTING)),
                ("ppm, everybody", Ppm(scope="everybody", **PREDICTING)),
                ("oracle", Oracle(**{**COMMON, "horizon_us": 5_000_000})),
            ]
            plain: Simulator | None = None
            for title, policy in policies:
                sim = played(directory, rows, policy, capacity)
                plain = plain or sim
                sums[title] = sums.get(title, np.zeros(8)) + measured(sim, plain)
                paired.setdefault(title, []).append(saved_ms(sim, plain))
    for title, row in sums.items():
        drawn = np.random.default_rng(0).choice(np.concatenate(paired[title]), (1_000, tenants * STEPS * seeds)).mean(1)
        low, high = np.quantile(drawn, [0.025, 0.975])
        print(f"{title:28}" + "".join(f"{cell:11.3f}" for cell in row / seeds) + f"  saved [{low:.1f}, {high:.1f}] ms")
    return 0


def saved_ms(sim: Simulator, plain: Simulator) -> np.ndarray:
    """Of each request, the TTFT saved."""
    with_it = {o.request_id: o.ttft_us for o in sim.outcomes}
    return np.array([o.ttft_us - with_it[o.request_id] for o in plain.outcomes]) / 1000


def measured(sim: Simulator, plain: Simulator) -> np.ndarray:
    """TTFT, what is saved against `plain`, the same less the price of waste, MiB moved, coverage (of blocks cold
    without prefetch), accuracy and waste of landed blocks, and blocks found without prefetch and not with it."""
    count = {name: sum(w.prefetching.counters[name] for w in sim.workers) for name in ("landed_blocks", "used_blocks")}
    with_it = {o.request_id: o for o in sim.outcomes}
    cold = sum(o.prompt_tokens - TAIL_TOKENS - o.resident_tokens for o in plain.outcomes) / BLOCK_TOKENS
    ttft, before = (float(np.mean([o.ttft_us for o in s.outcomes])) / 1000 for s in (sim, plain))
    displaced = sum(max(0, o.resident_tokens - with_it[o.request_id].resident_tokens) for o in plain.outcomes)
    landed, used = count["landed_blocks"], count["used_blocks"]
    accuracy = used / landed if landed else 0.0
    wasted = 1 - accuracy if landed else 0.0
    moved = sim.moved_bytes / (1 << 20)
    price_ms = (landed - used) * BLOCK_BYTES * COMMON["price_ps_per_byte"] / 1e9 / len(sim.outcomes)
    return np.array(
        [ttft, before - ttft, before - ttft - price_ms, moved, used / cold, accuracy, wasted, displaced / BLOCK_TOKENS]
    )


if __name__ == "__main__":
    given = [int(a) for a in sys.argv[1:] if a.isdigit()]
    sys.exit(main(given[0] if given else 60, given[1] if len(given) > 1 else 2, "--network" in sys.argv))
