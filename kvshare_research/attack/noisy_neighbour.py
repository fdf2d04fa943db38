"""`python -m kvshare_research.attack.noisy_neighbour`: one tenant floods a fleet; what becomes of the others.

Shipped routers and workers in virtual time. Victims reuse a few hot private prefixes; the aggressor sends long prompts
that never repeat, faster than the fleet can serve, and has each sent from node to node, over the links. Guards differ
in floors, pool and schedule and in nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from msgspec import structs

from kvshare_research.cli import app
from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import AccountSpec, Chain, Outcome, Request, Segment, Status
from kvshare_research.core.ports import Schedule, Tenancy
from kvshare_research.core.rights import EVERYBODY, TENANT, Scope
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.namespace import ModelSpace, chain
from kvshare_research.guard.shard import Shard
from kvshare_research.schedule.dlpm import DlpmSchedule
from kvshare_research.schedule.fcfs import FcfsSchedule
from kvshare_research.schedule.vtc import VtcSchedule

from .probing import BLOCK_TOKENS, VOCABULARY, modelled_fleet

VICTIMS = 3
AGGRESSOR = VICTIMS + 1
BASE = Directory(
    tenants=(*(f"victim{i + 1}" for i in range(VICTIMS)), "aggressor"),
    groups=(),
    scopes=(EVERYBODY, *(Scope(TENANT, i + 1) for i in range(AGGRESSOR))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What stands between the tenants. `floor_ratio` of the pool is reserved for the victims together."""

    name: str
    tenancy: Tenancy
    schedule: Schedule
    floor_ratio: float = 0.0
    aggressor: bool = True


GUARDS = (
    Guard(name="no aggressor", tenancy=Layered(), schedule=FcfsSchedule(), aggressor=False),
    Guard(name="shared pool, fcfs", tenancy=Layered(), schedule=FcfsSchedule()),
    Guard(name="shared pool, vtc", tenancy=Layered(), schedule=VtcSchedule()),
    Guard(name="floors, fcfs", tenancy=Layered(), schedule=FcfsSchedule(), floor_ratio=0.75),
    Guard(name="floors, vtc", tenancy=Layered(), schedule=VtcSchedule(), floor_ratio=0.75),
    Guard(name="floors, dlpm", tenancy=Layered(), schedule=DlpmSchedule(quantum_tokens=2048), floor_ratio=0.75),
    Guard(name="shard, vtc", tenancy=Shard(), schedule=VtcSchedule()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffered:
    """What the victims got after the flood began. Times in us; a request not answered by the end counts as waiting."""

    guard: str
    hit_ratio: float  # reused tokens of prompt tokens, of answered requests
    ttft_p50_us: float
    ttft_p99_us: float
    answered_ratio: float
    goodput_ratio: float  # victims' requests answered within the objective, of those asked
    aggressor_tokens: int
    moved_bytes: int  # over links, the calm time included
    jain: float  # index of tokens served by tokens asked for, over all tenants


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyNeighbour:
    """Each guard under the same arrivals. Gaps are means of exponential ones, in us."""

    nodes: int
    capacity_blocks: int
    us_per_token: int
    hot_prefixes: int  # of each victim
    prefix_blocks: int
    victim_gap_us: int  # of each victim
    aggressor_gap_us: int
    aggressor_blocks: int
    aggressor_pulls: bool = False  # each of its prompts is asked again on the next node: its blocks are moved there
    objective_us: int = 500_000  # TTFT within which an answer counts as goodput
    calm_us: int  # before the flood
    flood_us: int
    seed: int
    out: str | None = None

    def run(self) -> int:
        """Prints a row per guard; 1 if floors with a fair schedule do not keep the victims as they were."""
        print(
            f"{'guard':20} {'victims: hits':>13} {'TTFT p50':>10} {'p99':>10} {'answered':>9} {'Jain':>6}  [simulated]"
        )
        rows = []
        for guard in GUARDS:
            row = self.suffered(guard)
            rows.append(row)
            print(
                f"{row.guard:20} {row.hit_ratio:13.3f} {row.ttft_p50_us / 1e3:7.1f} ms {row.ttft_p99_us / 1e3:7.1f} ms "
                f"{row.answered_ratio:9.3f} {row.jain:6.3f}",
                flush=True,
            )
        if self.out is not None:
            Path(self.out).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        return int(not self.protects(rows))

    def protects(self, rows: list[Suffered]) -> bool:
        """Floors and a fair schedule keep hits within 5 points and everybody answered; without them neither holds."""
        by_name = {row.guard: row for row in rows}
        calm, guarded, bare = by_name["no aggressor"], by_name["floors, vtc"], by_name["shared pool, fcfs"]
        kept = guarded.hit_ratio >= calm.hit_ratio - 0.05 and guarded.answered_ratio >= 0.99
        return kept and guarded.ttft_p99_us < bare.ttft_p99_us / 10

    def suffered(self, guard: Guard) -> Suffered:
        """The outcome of one guard."""
        directory = self._directory(guard)
        arrivals = list(self._arrivals(guard, directory))
        sim = modelled_fleet(
            directory, guard.schedule, nodes=self.nodes, capacity_blocks=self.capacity_blocks,
            us_per_token=self.us_per_token, seed=self.seed,
        )  # fmt: skip
        sim.feed(iter(arrivals))
        outcomes = {o.request_id: o for o in sim.run(until_us=self.calm_us + self.flood_us)}
        return self._summary(guard, [request for request, _ in arrivals], outcomes, sim.moved_bytes)

    def _directory(self, guard: Guard) -> Directory:
        share = int(self.capacity_blocks * guard.floor_ratio) // VICTIMS
        floors = [share if 1 <= scope_id <= VICTIMS else 0 for scope_id in range(len(BASE.scopes))]
        specs = tuple(
            AccountSpec(scope_id=i, reserved_blocks=floor, limit_blocks=self.capacity_blocks)
            for i, floor in enumerate(floors)
        )
        directory = guard.tenancy.directory(replace(BASE, accounts=specs))
        return replace(directory, accounts=guard.tenancy.accounts(directory, self.capacity_blocks))

    def _arrivals(self, guard: Guard, directory: Directory) -> Iterator[tuple[Request, Chain]]:
        """The same requests of victims for every guard."""
        ring, space = KeyRing(RootSecret.from_seed(self.seed)), ModelSpace(
            model="modelled", dtype="float16", block_tokens=BLOCK_TOKENS
        )  # fmt: skip
        end_us = self.calm_us + self.flood_us
        moments: list[tuple[float, int]] = []
        for tenant in range(1, AGGRESSOR + 1):
            draw = np.random.default_rng((self.seed, tenant))
            gap_us = self.aggressor_gap_us if tenant == AGGRESSOR else self.victim_gap_us
            at_us = float(self.calm_us) if tenant == AGGRESSOR else 0.0
            while (guard.aggressor or tenant != AGGRESSOR) and (at_us := at_us + draw.exponential(gap_us)) < end_us:
                moments.append((at_us, tenant))
        texts = {tenant: np.random.default_rng((self.seed, tenant, 1)) for tenant in range(1, AGGRESSOR + 1)}
        hot = {
            tenant: [self._text(texts[tenant], self.prefix_blocks) for _ in range(self.hot_prefixes)]
            for tenant in range(1, VICTIMS + 1)
        }
        turn, last = 0, np.empty(0, np.uint32)
        for number, (at_us, tenant) in enumerate(sorted(moments)):
            draw = texts[tenant]
            executor: int | None = None
            if tenant == AGGRESSOR and self.aggressor_pulls:
                executor, turn = turn % self.nodes, turn + 1
            tokens = self._text(draw, 1 if tenant != AGGRESSOR else self.aggressor_blocks)
            if tenant != AGGRESSOR:
                tokens = np.concatenate([hot[tenant][int(draw.integers(self.hot_prefixes))], tokens])
            elif executor:  # not on the first node: what was just asked there
                tokens = last
            last = tokens if tenant == AGGRESSOR else last
            asked = [Segment(scope_id=directory.scope_id(Scope(TENANT, tenant)), token_count=len(tokens))]
            ids = guard.tenancy.scopes(tenant, asked, directory, int(at_us), 0)
            segments = tuple(structs.replace(s, scope_id=i) for s, i in zip(asked, ids, strict=True))
            request = Request(
                request_id=number, tenant_id=tenant, segments=segments, output_tokens_max=1,
                ingress=number % self.nodes, arrival_us=int(at_us), executor=executor,
            )  # fmt: skip
            yield request, chain(tokens, segments, ids, directory=directory, ring=ring, space=space)

    def _text(self, draw: np.random.Generator, blocks: int) -> Any:
        return draw.integers(0, VOCABULARY, blocks * BLOCK_TOKENS, dtype=np.uint32)

    def _summary(
        self, guard: Guard, requests: list[Request], outcomes: dict[int, Outcome], moved_bytes: int
    ) -> Suffered:
        end_us = self.calm_us + self.flood_us
        asked, served = np.zeros(AGGRESSOR + 1), np.zeros(AGGRESSOR + 1)
        waits: list[int] = []
        prompt = reused = answered = 0
        for request in (r for r in requests if r.arrival_us >= self.calm_us):
            outcome = outcomes.get(request.request_id)
            done = outcome is not None and outcome.status == Status.DONE
            asked[request.tenant_id] += request.token_count
            served[request.tenant_id] += request.token_count if done else 0
            if request.tenant_id == AGGRESSOR:
                continue
            waits.append(outcome.ttft_us if outcome is not None and done else end_us - request.arrival_us)
            if outcome is not None and done:
                answered += 1
                prompt += outcome.prompt_tokens
                reused += outcome.prompt_tokens - outcome.computed_tokens
        share = served[asked > 0] / asked[asked > 0]
        return Suffered(
            guard=guard.name,
            hit_ratio=reused / max(1, prompt),
            ttft_p50_us=float(np.quantile(waits, 0.5)),
            ttft_p99_us=float(np.quantile(waits, 0.99)),
            answered_ratio=answered / len(waits),
            goodput_ratio=sum(wait <= self.objective_us for wait in waits) / len(waits),
            aggressor_tokens=int(served[AGGRESSOR]),
            moved_bytes=moved_bytes,
            jain=float(share.sum() ** 2 / (len(share) * (share**2).sum())),
        )


@app("noisy_neighbour", module="kvshare_research.attack.noisy_neighbour")
def main(cfg: Mapping[str, Any], comm: Any) -> int:
    """One row per guard; 1 if the guard that should protect does not."""
    from kvshare_research.build import build
    from kvshare_research.config import plain

    code: int = build(plain(cfg)["noise"], "noise").run()
    return code


if __name__ == "__main__":
    sys.exit(main())
