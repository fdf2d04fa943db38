"""What the guard adds to a decision: `layered` beside `one_group`, the same prompts in turn, in one process.

    python -m benchmarks.guard nodes=16 requests=1000

A decision is what happens between a prompt's arrival and its dispatch: scopes, block hashes, and the router (lookup,
judge, quote, select), in processor time, so that other load does not count. The share is that of the quoted time to
first token, by the coefficients of `conf/cost/ttft.yaml`.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvshare_research.core import messages as m
from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import Action, Outcome, Request, Segment, Status
from kvshare_research.core.rights import EVERYBODY, GROUP, TENANT, USER, Scope
from kvshare_research.core.router import Router, RouterPolicy
from kvshare_research.cost.links import LinkModel, LinkTable
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace, chain

from . import settings
from .decision import component

TENANCIES = ("one_group", "layered")
STAGES = ("scopes", "hashes", "router")
SPACE = ModelSpace(model="m", dtype="float32", block_tokens=16)
BLOCK_BYTES = 1 << 20
Times = NDArray[np.float64]


@dataclass
class Settings:
    nodes: int = 16
    requests: int = 1000
    tenants: int = 64
    public_tokens: int = 1024
    group_tokens: int = 256
    tenant_tokens: int = 256
    user_tokens: int = 64
    seed: int = 1
    out: str = "outputs/benchmarks/guard"


class Side:
    """One tenancy: its directory, and a router whose nodes hold the shared text."""

    def __init__(self, name: str, given: Settings) -> None:
        self.tenancy, self.given = component("tenancy", name), given
        users = tuple((f"u{i}", i + 1) for i in range(given.tenants))
        base = Directory(
            tenants=tuple(f"t{i}" for i in range(given.tenants)), groups=("guild",), users=users,
            scopes=(EVERYBODY, Scope(GROUP, 1), *(Scope(USER, i + 1) for i in range(given.tenants))),
        )  # fmt: skip
        for tenant in range(given.tenants):
            base = base.granted(tenant + 1, 1)
        self.directory = self.tenancy.directory(base)
        self.ring = KeyRing(RootSecret.from_seed(0))
        policy = RouterPolicy(
            cost=component("cost", "ttft"), selector=component("selector", "cheapest"), actions=frozenset(Action),
            block_bytes=BLOCK_BYTES,
        )  # fmt: skip
        self.router = Router(
            policy=policy, directory=self.directory, index=component("index", "flat").new_store(given.nodes),
            links=LinkTable.start(given.nodes, LinkModel()), node_count=given.nodes,
        )  # fmt: skip
        for node in range(given.nodes):
            self.router.handle(m.NodeJoined(node=node, incarnation=1, capacity_blocks=1 << 20), 0)

    def asked(self, tenant: int, number: int) -> tuple[Request, list[Segment]]:
        """The request of a tenant, with the scopes that its template asks for."""
        given, scopes = self.given, (EVERYBODY, Scope(GROUP, 1), Scope(TENANT, tenant), Scope(USER, tenant))
        counts = (given.public_tokens, given.group_tokens, given.tenant_tokens, given.user_tokens)
        segments = [
            Segment(scope_id=self.directory.scope_id(s), token_count=n) for s, n in zip(scopes, counts, strict=True)
        ]
        request = Request(
            request_id=number, tenant_id=tenant, user_id=tenant, segments=tuple(segments), output_tokens_max=1,
            ingress=number % given.nodes, arrival_us=number,
        )  # fmt: skip
        return request, segments

    def decide(self, tenant: int, tokens: Any, number: int) -> tuple[list[float], int]:
        """Time of each stage in us, and the quoted TTFT; afterwards the executor holds the prompt."""
        request, segments = self.asked(tenant, number)
        clock, marks = time.thread_time_ns, [time.thread_time_ns()]
        ids = self.tenancy.scopes(tenant, segments, self.directory, number, request.user_id)
        marks.append(clock())
        scoped = tuple(replace(s, scope_id=i) for s, i in zip(segments, ids, strict=True))
        made = chain(tokens, scoped, ids, directory=self.directory, ring=self.ring, space=SPACE)
        marks.append(clock())
        effects = self.router.handle(m.Arrived(request=replace(request, segments=scoped), chain=made), number)
        marks.append(clock())
        plan = next(e.plan for e in effects if isinstance(e, m.Dispatch))
        self.router.replica.store.store(plan.executor, 0, None, made.block_hashes(0, made.block_count))
        done = Outcome(
            request_id=number, tenant_id=tenant, application="", status=Status.FAILED, executor=plan.executor
        )
        self.router.handle(m.Completed(request_id=number, outcome=done), number)
        return [(b - a) / 1000 for a, b in pairwise(marks)], plan.quoted_ttft_us


def measured(given: Settings) -> dict[str, Any]:
    """Stage times of both tenancies, prompt by prompt, and the paired difference."""
    draw = np.random.default_rng(given.seed)
    sides = {name: Side(name, given) for name in TENANCIES}
    shared = draw.integers(0, 50_000, given.public_tokens + given.group_tokens, dtype=np.uint32)
    own = draw.integers(0, 50_000, (given.tenants, given.tenant_tokens), dtype=np.uint32)
    times = {name: np.zeros((given.requests, len(STAGES))) for name in TENANCIES}
    ttft = {name: np.zeros(given.requests) for name in TENANCIES}
    warm = max(1, given.requests // 10)
    for number in range(-warm, given.requests):
        tenant = int(draw.integers(given.tenants)) + 1
        tail = draw.integers(0, 50_000, given.user_tokens, dtype=np.uint32)
        tokens = np.concatenate([shared, own[tenant - 1], tail])
        for name in TENANCIES if number % 2 else TENANCIES[::-1]:
            spent, quoted = sides[name].decide(tenant, tokens, number + warm + 1)
            if number >= 0:
                times[name][number], ttft[name][number] = spent, quoted
    extra = times["layered"].sum(axis=1) - times["one_group"].sum(axis=1)
    return {
        "settings": asdict(given),
        "us": {n: {**_row(t.sum(axis=1)), "stages_p50": np.median(t, axis=0).tolist()} for n, t in times.items()},
        "guard_us": _row(extra),
        "ttft_us_p50": float(np.median(ttft["layered"])),
        "share_p50": float(np.median(extra / ttft["layered"])),
        "decision_share_p50": float(np.median(times["layered"].sum(axis=1) / ttft["layered"])),
    }


def _row(values: Times) -> dict[str, float]:
    return {"p50": float(np.median(values)), "p99": float(np.quantile(values, 0.99))}


def main() -> None:
    given = settings.given(Settings)
    found = measured(given)
    print(f"{'us per decision [measured]':28}{'p50':>9}{'p99':>9}   p50 of {', '.join(STAGES)}")
    for name in TENANCIES:
        row = found["us"][name]
        stages = ", ".join(f"{s:.1f}" for s in row["stages_p50"])
        print(f"{name:28}{row['p50']:9.1f}{row['p99']:9.1f}   {stages}")
    print(f"{'the guard, prompt by prompt':28}{found['guard_us']['p50']:9.1f}{found['guard_us']['p99']:9.1f}")
    print(
        f"share of the quoted TTFT (median {found['ttft_us_p50'] / 1000:.1f} ms): guard {found['share_p50']:.5%}, "
        f"whole decision {found['decision_share_p50']:.4%}"
    )
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{given.nodes}_nodes.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
