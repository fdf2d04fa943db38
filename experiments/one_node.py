"""One shipped worker behind one shipped router in virtual time: for experiments on a cache and its queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from kvshare_research.build import build
from kvshare_research.core.costing import PS_PER_US, PrefillCoefficients
from kvshare_research.core.directory import Directory
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import AccountSpec, Action, Chain, LinkRow, Outcome, Request, Segment, Status
from kvshare_research.core.ports import Retention, Schedule
from kvshare_research.core.rights import EVERYBODY, TENANT, Scope
from kvshare_research.core.router import Router, RouterPolicy
from kvshare_research.core.running import WorkerPolicy
from kvshare_research.core.worker import Worker
from kvshare_research.cost.links import LinkModel, LinkTable
from kvshare_research.cost.ttft import TtftCost
from kvshare_research.driver.simulator import Simulator
from kvshare_research.driver.simulator_engine import EngineModel
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace, chain
from kvshare_research.index.reference import ReferenceIndex
from kvshare_research.schedule.fcfs import FcfsSchedule
from kvshare_research.selector.cheapest import Cheapest

ROOT = Path(__file__).parents[1]
Arrivals = Sequence[tuple[Request, Chain]]
RING = KeyRing(RootSecret.from_seed(0))


def policy(name: str) -> Retention:
    """The retention policy of this name, with the values of its YAML."""
    made: Retention = build(OmegaConf.to_container(OmegaConf.load(ROOT / f"conf/retention/{name}.yaml")), "retention")
    return made


def tenants(count: int) -> Directory:
    """So many tenants, each with a scope of its own: tenant i has scope i."""
    scopes = (EVERYBODY, *(Scope(TENANT, i + 1) for i in range(count)))
    return Directory(tenants=tuple(f"tenant{i + 1}" for i in range(count)), groups=(), scopes=scopes)


def free(directory: Directory, capacity_blocks: int) -> tuple[AccountSpec, ...]:
    """Every account may have the whole pool, and none has a floor."""
    scopes = range(len(directory.scopes))
    return tuple(AccountSpec(scope_id=i, reserved_blocks=0, limit_blocks=capacity_blocks) for i in scopes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What one run is made with. An accounts' tuple of none: every account is free."""

    directory: Directory
    capacity_blocks: int
    block_tokens: int
    us_per_token: int
    retention: Retention
    schedule: Schedule = field(default_factory=FcfsSchedule)
    accounts: tuple[AccountSpec, ...] = ()
    admitted_max: int = 3

    def simulator(self) -> Simulator:
        """The machines, empty."""
        specs = self.accounts or free(self.directory, self.capacity_blocks)
        directory = replace(self.directory, accounts=specs)
        rates = PrefillCoefficients(0, self.us_per_token * PS_PER_US, 0, 0, 0)
        cost = TtftCost(**rates._asdict(), merge_ps_per_byte=0)
        rules = WorkerPolicy(
            retention=self.retention, schedule=self.schedule, block_tokens=self.block_tokens, block_bytes=1,
            admitted_max=self.admitted_max,
        )  # fmt: skip
        actions = frozenset({Action.RECOMPUTE, Action.RESIDENT})
        router = Router(
            policy=RouterPolicy(cost=cost, selector=Cheapest(), actions=actions, block_bytes=1, guess_us=10_000_000),
            directory=directory,
            index=ReferenceIndex().new_store(1),
            links=LinkTable.start(1, LinkModel()),
            node_count=1,
        )
        books = Ledger(
            capacity_blocks=self.capacity_blocks, accounts=specs, retention=self.retention,
            recompute_us=self.us_per_token * self.block_tokens,
        )  # fmt: skip
        worker = Worker(node=0, incarnation=1, policy=rules, ledger=books, directory=directory)
        link = LinkRow(rtt_us=0, rtt_high_us=0, ps_per_byte=0, ps_per_byte_high=0)
        engine = EngineModel(prefill=rates, decode_step_ps=PS_PER_US)
        return Simulator(router=router, workers=[worker], links=[[link]], engine=engine, block_bytes=1)

    def play(self, arrivals: Arrivals, until_us: int | None = None) -> dict[int, Outcome]:
        """The outcomes, by request; an oracle is told all arrivals."""
        sim = self.simulator()
        future: dict[bytes, list[int]] = {}
        for request, hashed in arrivals:
            for block_hash in hashed.block_hashes(0, hashed.block_count):
                future.setdefault(block_hash, []).append(request.arrival_us)
        sim.workers[0].ledger.values.future = future
        sim.feed(iter(arrivals))
        outcomes = {o.request_id: o for o in sim.run(until_us)}
        sim.workers[0].ledger.check()
        return outcomes


def asked(
    number: int, tenant: int, tokens: NDArray[np.uint32], at_us: int, directory: Directory, block_tokens: int
) -> tuple[Request, Chain]:
    """A request for one token of output, all of whose prompt belongs to its tenant."""
    segments = (Segment(scope_id=tenant, token_count=len(tokens)),)
    request = Request(
        request_id=number, tenant_id=tenant, segments=segments, output_tokens_max=1, ingress=0, arrival_us=at_us
    )
    space = ModelSpace(model="modelled", dtype="none", block_tokens=block_tokens)
    return request, chain(tokens, segments, (tenant,), directory=directory, ring=RING, space=space)


def hit_ratio(outcomes: Iterable[Outcome]) -> float:
    """Reused tokens of prompt tokens, of what was answered."""
    done = [o for o in outcomes if o.status == Status.DONE]
    prompt = sum(o.prompt_tokens for o in done)
    return 1 - sum(o.computed_tokens for o in done) / prompt if prompt else 0.0
