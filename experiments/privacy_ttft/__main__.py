"""Hit rate and TTFT against epsilon: `python -m experiments.privacy_ttft`.

Simulated: the shipped hasher, desk, router and workers in virtual time. Every tenant uses a few of 200 templates
(Zipf), each a prompt of its own scope; on day one it votes, at night the desk releases, day two is measured on empty
pools. The rows go from sharing nothing to sharing everything, with what each released and what it spent.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from kvshare_research.core import messages as m
from kvshare_research.core.directory import Directory
from kvshare_research.core.ledger import Ledger as Pool
from kvshare_research.core.nouns import Action, LinkRow, Outcome, Request, Segment
from kvshare_research.core.ports import Disclosure
from kvshare_research.core.rights import EVERYBODY, TENANT, USER, Scope
from kvshare_research.core.router import Router, RouterPolicy
from kvshare_research.core.running import WorkerPolicy
from kvshare_research.core.worker import Worker
from kvshare_research.cost.links import LinkModel, LinkTable
from kvshare_research.cost.ttft import TtftCost
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.driver.simulator import Simulator
from kvshare_research.driver.simulator_engine import EngineModel
from kvshare_research.guard.disclosing import Offer
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.namespace import ModelSpace
from kvshare_research.index.reference import ReferenceIndex
from kvshare_research.privacy.desk import Desk
from kvshare_research.privacy.ledger import Budget, Ledger
from kvshare_research.retention.lru import LruRetention
from kvshare_research.schedule.fcfs import FcfsSchedule
from kvshare_research.selector.cheapest import Cheapest
from kvshare_research.study.prompts import Hasher

from .pareto import EVERYTHING, Row, plot, policies, show

BLOCK_TOKENS, BLOCK_BYTES, NODES, TEMPLATES, TAIL_TOKENS = 16, 1 << 20, 3, 200, 40
DAY_US = 86_400_000_000
COST = TtftCost(
    c0_ps=5_000_000_000, c1_ps_per_token=1_300_000_000, c2_ps_per_token=6_000_000, c3_ps_per_token2=1_000_000,
    c4_ps_per_token2=500_000, merge_ps_per_byte=0,
)  # fmt: skip


def fleet(
    directory: Directory, ps_per_byte: int = 800, *, cost: TtftCost = COST, block_tokens: int = BLOCK_TOKENS,
    block_bytes: int = BLOCK_BYTES,
) -> Simulator:  # fmt: skip
    """Three empty nodes with pools that hold everything: what is measured is sharing, not eviction."""
    policy = RouterPolicy(cost=cost, selector=Cheapest(), actions=frozenset(Action), block_bytes=block_bytes)
    links = LinkTable.start(NODES, LinkModel(rtt_us=1_000, ps_per_byte=ps_per_byte))
    for source, reader in permutations(range(NODES), 2):  # calibrated, as every study is
        for _ in range(8):
            links = links.measured(source, reader, 0, 1_000, 0)
            links = links.measured(
                source, reader, 8 * block_bytes, 1_000 + 8 * block_bytes * ps_per_byte // 1_000_000, 0
            )
    router = Router(
        policy=policy, directory=directory, index=ReferenceIndex().new_store(NODES), links=links, node_count=NODES
    )
    kept = LruRetention()
    serving = WorkerPolicy(retention=kept, schedule=FcfsSchedule(), block_tokens=block_tokens, block_bytes=block_bytes)
    workers = [
        Worker(
            node=n, incarnation=1, policy=serving, directory=directory,
            ledger=Pool(capacity_blocks=400_000, accounts=(), retention=kept),
        )
        for n in range(NODES)
    ]  # fmt: skip
    link = LinkRow(rtt_us=1_000, rtt_high_us=1_000, ps_per_byte=ps_per_byte, ps_per_byte_high=ps_per_byte)
    engine = EngineModel(prefill=cost.coefficients, decode_step_ps=10_000_000)
    return Simulator(
        router=router, workers=workers, links=[[link] * NODES] * NODES, engine=engine, block_bytes=block_bytes
    )


class Town:
    """Tenants, their templates and what they ask on a day; the same for every policy."""

    def __init__(self, tenants: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        popularity = 1 / np.arange(1, TEMPLATES + 1) ** 1.1
        popularity /= popularity.sum()
        self.directory = Layered().directory(
            Directory(
                tenants=tuple(f"t{i}" for i in range(tenants)),
                groups=(),
                users=tuple((f"u{i}", i + 1) for i in range(tenants)),
                scopes=(
                    EVERYBODY,
                    *(Scope(TENANT, i + 1) for i in range(tenants)),
                    *(Scope(USER, i + 1) for i in range(tenants)),
                ),
            )
        )
        self.hasher = Hasher(
            tenancy=Layered(), directory=self.directory, ring=KeyRing(RootSecret.from_seed(seed)), discloses=True,
            space=ModelSpace(model="m", dtype="fp32", block_tokens=BLOCK_TOKENS),
        )  # fmt: skip
        self.lengths = np.clip(rng.lognormal(3.0, 0.7, TEMPLATES).astype(int), 4, 80) * BLOCK_TOKENS
        self.votes: list[tuple[Offer | None, Request]] = []
        self.uses = [rng.choice(TEMPLATES, rng.geometric(1 / 3), p=popularity) for _ in range(tenants)]

    def vote(self, desk: Desk, seed: int) -> None:
        """All votes of day one are on the desk; they are worked out once."""
        if not self.votes:
            asked = self.day(2 * seed)
            self.votes = [(self.hasher.chained(request, tokens)[2], request) for request, tokens in asked]
        for offer, request in self.votes:
            desk.vote(offer, request)

    def day(self, seed: int, everybody: bool = False) -> list[tuple[Request, np.ndarray]]:
        """Each tenant asks with each of its templates once or twice, in random order."""
        rng = np.random.default_rng(seed)
        asked = [(t, int(x)) for t, uses in enumerate(self.uses) for x in uses for _ in range(int(rng.integers(1, 3)))]
        rng.shuffle(asked)
        out = []
        for number, (tenant, template) in enumerate(asked):
            front = np.arange(self.lengths[template], dtype=np.uint32) + 1000 * template
            tokens = np.concatenate([front, rng.integers(1 << 20, 1 << 21, TAIL_TOKENS).astype(np.uint32)])
            scopes = (EVERYBODY if everybody else Scope(TENANT, tenant + 1), Scope(USER, tenant + 1))
            segments = tuple(
                Segment(scope_id=self.directory.scope_id(s), token_count=n)
                for s, n in zip(scopes, (len(front), TAIL_TOKENS), strict=True)
            )
            request = Request(
                request_id=number + 1, tenant_id=tenant + 1, user_id=tenant + 1, segments=segments, output_tokens_max=1,
                ingress=int(rng.integers(NODES)), arrival_us=0,
            )  # fmt: skip
            out.append((request, tokens))
        return out


def played(town: Town, policy: Disclosure, seed: int, everybody: bool = False) -> tuple[Sequence[Outcome], Desk]:
    """Day two under what day one's votes released."""
    budget = Budget(epsilon=100.0, delta=1e-5, unit="tenant", population=len(town.directory.tenants))
    desk = Desk(policy, SeededNoise(seed), Ledger(budget, None))
    town.vote(desk, seed)
    desk.advance(DAY_US)
    sim = fleet(town.directory)
    sim.at(0, m.PrefixesReleased(prefixes=desk.prefixes()))
    sim.run()
    start_us = sim.now_us
    for number, (request, tokens) in enumerate(town.day(2 * seed + 1, everybody)):
        made, chain, _ = town.hasher.chained(request, tokens, sim.router.promoted)
        sim.inject(replace(made, arrival_us=start_us + 1 + number * 2_000_000), chain)
    return sim.run(), desk


def main(given: argparse.Namespace) -> int:
    """Prints a row per policy."""
    rows: dict[str, Row] = {}
    for seed in range(given.seeds):
        town = Town(given.tenants, seed)
        for title, policy in policies(DAY_US).items():
            everything = title == EVERYTHING
            outcomes, desk = played(town, policy, seed, everything)
            rows.setdefault(title, Row()).add(outcomes, desk, everything)
            print(".", end="", file=sys.stderr, flush=True)
    print(f"\nsimulated: {given.tenants} tenants, {TEMPLATES} templates, {NODES} nodes, {given.seeds} seeds")
    show(rows)
    if given.figure:
        plot(rows, f"{given.tenants} tenants, {TEMPLATES} templates [simulated]", given.figure)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m experiments.privacy_ttft")
    parser.add_argument("--tenants", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--figure", type=Path, help="draw it, as a picture of this name")
    sys.exit(main(parser.parse_args()))
