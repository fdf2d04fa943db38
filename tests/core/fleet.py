"""A small fleet of real routers and workers in virtual time, and requests for it: two tenants, one group of both."""

from __future__ import annotations

from collections.abc import Iterable

from kvshare_research.core.directory import Directory
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import (
    Action,
    Chain,
    LinkRow,
    Outcome,
    Request,
    Segment,
    Status,
)
from kvshare_research.core.rights import GROUP, PUBLIC, TENANT, Membership, Scope
from kvshare_research.core.router import Router, RouterPolicy
from kvshare_research.core.running import WorkerPolicy
from kvshare_research.core.worker import Worker
from kvshare_research.cost.links import LinkModel, LinkTable
from kvshare_research.cost.ttft import TtftCost
from kvshare_research.driver.simulator import EngineModel, Simulator
from kvshare_research.index.reference import ReferenceIndex
from kvshare_research.retention.lru import LruRetention
from kvshare_research.schedule.fcfs import FcfsSchedule
from kvshare_research.selector.cheapest import Cheapest

BLOCK_TOKENS = 16
BLOCK_BYTES = 1 << 20
PUBLIC_ID, GROUP_ID, ONE, TWO = range(4)
DIRECTORY = Directory(
    tenants=("one", "two"),
    groups=("both",),
    scopes=(Scope(PUBLIC, 0), Scope(GROUP, 1), Scope(TENANT, 1), Scope(TENANT, 2)),
    memberships=(((1, 1), Membership(True, 1, 1 << 60)), ((2, 1), Membership(True, 1, 1 << 60))),
)


COST = TtftCost(
    c0_ps=1_000_000_000,
    c1_ps_per_token=2_000_000_000,
    c2_ps_per_token=2_000_000,
    c3_ps_per_token2=0,
    c4_ps_per_token2=0,
    merge_ps_per_byte=0,
)


def fleet(
    nodes: int = 2, *, capacity: int = 64, directory: Directory = DIRECTORY, rtt_us: int = 1_000, ps_per_byte: int = 1_000,
    actions: Iterable[Action] = tuple(Action), event_delay_us: int = 0, guess_us: int = 0, deadline_us: int = 10_000_000,
) -> Simulator:  # fmt: skip
    """A fleet of empty nodes with equal links."""
    model = LinkModel(rtt_us=rtt_us, ps_per_byte=ps_per_byte)
    router = Router(
        policy=RouterPolicy(
            cost=COST,
            selector=Cheapest(),
            actions=frozenset(actions),
            block_bytes=BLOCK_BYTES,
            guess_us=guess_us,
        ),
        directory=directory,
        index=ReferenceIndex().new_store(nodes),
        links=LinkTable.start(nodes, model),
        node_count=nodes,
    )
    policy = WorkerPolicy(
        retention=LruRetention(),
        schedule=FcfsSchedule(),
        block_tokens=BLOCK_TOKENS,
        block_bytes=BLOCK_BYTES,
        fetch_deadline_us=deadline_us,
    )
    workers = [
        Worker(
            node=node,
            incarnation=1,
            policy=policy,
            ledger=Ledger(capacity_blocks=capacity, accounts=directory.accounts, retention=LruRetention()),
            directory=directory,
        )
        for node in range(nodes)
    ]
    link = LinkRow(rtt_us=rtt_us, rtt_high_us=rtt_us, ps_per_byte=ps_per_byte, ps_per_byte_high=ps_per_byte)
    return Simulator(
        router=router,
        workers=workers,
        links=[[link] * nodes] * nodes,
        engine=EngineModel(prefill=COST.coefficients, decode_step_ps=10_000_000),
        block_bytes=BLOCK_BYTES,
        event_delay_us=event_delay_us,
    )


def ask(
    sim: Simulator, number: int, *, tenant: int = 1, prefix: str = "p", prefix_scope: int = PUBLIC_ID, prefix_blocks: int = 8,
    tail_tokens: int = 24, at_us: int | None = None, executor: int | None = None, ingress: int = 0,
) -> None:  # fmt: skip
    """A request with a shared prefix and a private tail will arrive."""
    tail_scope = ONE if tenant == 1 else TWO
    tokens = prefix_blocks * BLOCK_TOKENS + tail_tokens
    full = tokens // BLOCK_TOKENS
    # A namespace per scope, as the real hash has: tails of different tenants never meet.
    names = [f"{prefix}{prefix_scope}/{i}" for i in range(prefix_blocks)]
    names += [f"{prefix}{tail_scope}/{number}/{i}" for i in range(prefix_blocks, full)]
    chain = Chain(
        hashes=b"".join(name.encode().ljust(16, b".")[:16] for name in names),
        scope_ends=((prefix_scope, prefix_blocks), (tail_scope, full))
        if full > prefix_blocks
        else ((prefix_scope, full),),
        block_tokens=BLOCK_TOKENS,
    )
    request = Request(
        request_id=number,
        tenant_id=tenant,
        segments=(
            Segment(scope_id=prefix_scope, token_count=prefix_blocks * BLOCK_TOKENS),
            Segment(scope_id=tail_scope, token_count=tail_tokens),
        ),
        output_tokens_max=2,
        ingress=ingress,
        arrival_us=sim.now_us + 1 if at_us is None else at_us,
        executor=executor,
    )
    sim.inject(request, chain)


def only(outcomes: list[Outcome], number: int) -> Outcome:
    (found,) = [o for o in outcomes if o.request_id == number]
    assert found.status == Status.DONE, found.reason
    return found
