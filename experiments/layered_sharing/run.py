"""What each layer of a prompt contributes to hits, to TTFT and to leakage, each with its own scope, class and rule.

System prompt: public, class 2. Few-shot examples: the tenant's, class 1, and what many tenants have alike is released
by `dp_batch`. User input: the user's, class 0. Simulated: the shipped hasher, desk, router and workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from msgspec.structs import replace

from experiments.privacy_ttft.__main__ import BLOCK_TOKENS, NODES, fleet
from experiments.table import show
from kvshare_research.core import messages as m
from kvshare_research.core.directory import Directory
from kvshare_research.core.ledger import Ledger as Pool
from kvshare_research.core.nouns import AccountSpec, Chain, Outcome, Request, Segment
from kvshare_research.core.rights import EVERYBODY, PUBLIC, SEALED, TENANT, USER, Scope
from kvshare_research.disclosure.dp_batch import DpBatch
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.driver.simulator import Simulator
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.namespace import ModelSpace
from kvshare_research.privacy.bounds import area
from kvshare_research.privacy.desk import Desk
from kvshare_research.privacy.ledger import Budget, Ledger
from kvshare_research.retention.lru import LruRetention
from kvshare_research.study.prompts import Hasher

LAYERS = ("system prompt", "few-shot", "user input")
COUNTS = (8 * BLOCK_TOKENS, 12 * BLOCK_TOKENS, 2 * BLOCK_TOKENS + 5)
TENANTS, APPLICATIONS, VARIANTS, ASKED, CAPACITY, TRIALS = 60, 4, 3, 6, 500, 100
CLASSES = {PUBLIC: 2, TENANT: 1, USER: 0}
ATTACKER, VICTIM = TENANTS, 1
SECOND = 1_000_000
Asked = tuple[Request, np.ndarray]


@dataclass(frozen=True)
class Rules:
    """Which layers are shared as widely as they may be: else the system prompt is each tenant's own, nothing is
    disclosed, and a question is for nobody. Without classes every account is of class 0."""

    system: bool = True
    disclosure: bool = True
    user: bool = True
    classes: bool = True


class Town:
    """Tenants with one user each; every tenant uses two applications with one set of examples each."""

    def __init__(self) -> None:
        own = [Scope(level, i + 1) for level in (TENANT, USER) for i in range(TENANTS)]
        base = Directory(
            tenants=tuple(f"t{i}" for i in range(TENANTS)), groups=(),
            users=tuple((f"u{i}", i + 1) for i in range(TENANTS)), scopes=(EVERYBODY, *own),
        )  # fmt: skip
        self.directory = Layered().directory(base)
        self.hasher = Hasher(
            tenancy=Layered(), directory=self.directory, ring=KeyRing(RootSecret.from_seed(0)), discloses=True,
            space=ModelSpace(model="m", dtype="fp32", block_tokens=BLOCK_TOKENS),
        )  # fmt: skip
        self.number = 0

    def sim(self, rules: Rules, capacity: int = CAPACITY) -> Simulator:
        """Three empty nodes whose pools hold about half of what is asked for, with an account per scope."""
        sim = fleet(self.directory)
        classes = CLASSES if rules.classes else {}
        accounts = tuple(
            AccountSpec(scope_id=i, reserved_blocks=0, limit_blocks=capacity, priority=classes.get(scope.level, 0))
            for i, scope in enumerate(self.directory.scopes)
        )
        for worker in sim.workers:
            pool = Pool(capacity_blocks=capacity, accounts=accounts, retention=LruRetention())
            made = type(worker)(
                node=worker.node, incarnation=1, policy=worker.policy, ledger=pool, directory=self.directory
            )
            sim.workers[worker.node] = made
        return sim

    def request(self, tenant: int, parts: tuple[Any, Any, Any], rules: Rules) -> Asked:
        """A prompt of three layers, named by what is in them."""
        self.number += 1
        own, mine = Scope(TENANT, tenant), Scope(USER, tenant)
        scopes = (EVERYBODY if rules.system else own, own, mine if rules.user else SEALED)
        segments = tuple(
            Segment(scope_id=self.directory.scope_id(s), token_count=n) for s, n in zip(scopes, COUNTS, strict=True)
        )
        texts = [
            np.random.default_rng(crc32(repr(p).encode())).integers(0, 1 << 20, n)
            for p, n in zip(parts, COUNTS, strict=True)
        ]
        request = Request(
            request_id=self.number, tenant_id=tenant, user_id=tenant, segments=segments, output_tokens_max=1,
            ingress=tenant % NODES, arrival_us=0,
        )  # fmt: skip
        return request, np.concatenate(texts).astype(np.uint32)

    def day(self, seed: int, rules: Rules) -> list[Asked]:
        """Each tenant asks a few times with its two applications, one of two questions."""
        rng, habits = np.random.default_rng(seed), np.random.default_rng(7)
        rows = []
        for tenant in range(1, TENANTS + 1):
            uses = [(int(habits.integers(APPLICATIONS)), int(habits.zipf(1.6)) % VARIANTS) for _ in range(2)]
            for i in range(ASKED):
                app, variant = uses[i % 2]
                texts = (("s", app), ("f", app, variant), ("q", tenant, int(rng.integers(2))))
                rows.append((tenant, texts, rules))
        return [self.request(*rows[k]) for k in rng.permutation(len(rows))]


def promoted(sim: Simulator, prefixes: tuple[Chain, ...]) -> None:
    """The operator has installed what is released."""
    sim.at(sim.now_us, m.PrefixesReleased(prefixes=prefixes))
    sim.run()


def played(town: Town, rules: Rules) -> list[Outcome]:
    """Day two, with what the votes of day one released."""
    policy = DpBatch(epsilon=2.0, delta=1e-3, l0=2, unit="tenant", period_us=SECOND)
    desk = Desk(policy, SeededNoise(3), Ledger(Budget(epsilon=3, delta=2e-3, unit="tenant", population=TENANTS), None))
    if rules.disclosure:
        for request, tokens in town.day(1, rules):
            desk.vote(town.hasher.prompt(request, tokens, warmup=False).offer, request)
        desk.advance(SECOND)
    sim = town.sim(rules)
    promoted(sim, desk.prefixes())
    start_us = sim.now_us
    for i, (request, tokens) in enumerate(town.day(2, rules)):
        made, chain, _ = town.hasher.chained(request, tokens, sim.router.promoted)
        sim.inject(replace(made, arrival_us=start_us + 1 + i * SECOND), chain)
    return sorted(sim.run(), key=lambda o: o.request_id)


def hits(outcomes: list[Outcome]) -> list[np.ndarray]:
    """By layer: the share of its tokens that was reused, of each request. What is reused is reused from the front."""
    ends = np.cumsum(COUNTS)
    reused = np.array([o.prompt_tokens - o.computed_tokens for o in outcomes], float)
    return [np.clip((reused - (end - n)) / n, 0, 1) for end, n in zip(ends, COUNTS, strict=True)]


def leak(town: Town, layer: int, *, release: bool) -> tuple[float, float, float]:
    """AUC of an attacker who asks, by time to first token: has the victim run this text, in this layer? Half has been.
    What lies before the layer is known to be there."""
    rng = np.random.default_rng(layer)
    ran = rng.random(TRIALS) < 0.5
    sim = town.sim(Rules(), capacity=20_000)
    parts = [tuple(("known",) if i < layer else ("trial", layer, t, i) for i in range(3)) for t in range(TRIALS)]

    def send(tenant: int, t: int, tail: str) -> Outcome:
        texts = (*parts[t][: layer + 1], *((tail, tenant, t, i) for i in range(layer + 1, 3)))
        request, tokens = town.request(tenant, texts, Rules())  # type: ignore[arg-type]
        made, chain, _ = town.hasher.chained(request, tokens, sim.router.promoted)
        sim.inject(replace(made, arrival_us=sim.now_us + SECOND), chain)
        return {o.request_id: o for o in sim.run()}[request.request_id]

    if release:
        offers = [town.hasher.chained(*town.request(VICTIM, p, Rules()))[2] for p in parts]  # type: ignore[arg-type]
        promoted(sim, tuple(o.prefix(o.names[-1]) for o in offers if o is not None))
    for tenant in (ATTACKER, VICTIM):  # what lies before
        send(tenant, 0, "warm")
    ttft = []
    for t in range(1, TRIALS):
        if ran[t]:
            send(VICTIM, t, "victim's")
        ttft.append(-float(send(ATTACKER, t, "attacker's").ttft_us))
    scores = np.array(ttft)
    return area(scores[ran[1:]], scores[~ran[1:]])


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean with its 95 % bootstrap interval over requests."""
    drawn = np.random.default_rng(0).choice(values, (1_000, len(values))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


def measured() -> dict[str, tuple[float, float, float]]:
    """Every quantity with its interval."""
    town = Town()
    whole = played(town, Rules())
    out = {f"{layer}: hits": interval(rows) for layer, rows in zip(LAYERS, hits(whole), strict=True)}
    steps = [
        Rules(system=False, disclosure=False, user=False), Rules(disclosure=False, user=False), Rules(user=False),
    ]  # fmt: skip
    times = [np.array([o.ttft_us for o in played(town, rules)], float) / 1000 for rules in steps]
    times.append(np.array([o.ttft_us for o in whole], float) / 1000)
    out["nothing shared: TTFT, ms"] = interval(times[0])
    for layer, before, after in zip(LAYERS, times, times[1:], strict=False):
        out[f"{layer}: TTFT saved, ms"] = interval(before - after)
    plain = np.array([o.ttft_us for o in played(town, Rules(classes=False))], float) / 1000
    out["classes: TTFT saved, ms"] = interval(plain - times[-1])
    out["system prompt: attacker's AUC"] = leak(town, 0, release=False)
    out["few-shot, not released: attacker's AUC"] = leak(town, 1, release=False)
    out["few-shot, released: attacker's AUC"] = leak(town, 1, release=True)
    out["user input: attacker's AUC"] = leak(town, 2, release=False)
    return out


def run() -> dict[str, float]:
    """Every quantity."""
    return {name: value for name, (value, _, _) in measured().items()}


def main() -> int:
    """The quantities with their intervals, then against their bands."""
    rows = measured()
    print("| quantity | ours | 95 % interval |\n|---|---|---|")
    for name, (value, low, high) in rows.items():
        print(f"| {name} | {value:.4g} | {low:.3g} to {high:.3g} |")
    print()
    return show(Path(__file__).parent, {name: value for name, (value, _, _) in rows.items()})


if __name__ == "__main__":
    raise SystemExit(main())
