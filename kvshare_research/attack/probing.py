"""A hostile tenant in a fleet of shipped machines, in virtual time: it knows the template and guesses a secret field.

Each victim's prompt is public template + secret + private tail. Then the attacker sends the template with one
candidate after another and watches what it is told. Others send requests meanwhile, so that times are not clean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from kvshare_research.core.costing import PS_PER_US, PrefillCoefficients
from kvshare_research.core.directory import Directory
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import NO_NODE, Action, Chain, LinkRow, Outcome, Request
from kvshare_research.core.ports import Schedule, Tenancy
from kvshare_research.core.rights import EVERYBODY, GROUP, TENANT, Scope
from kvshare_research.core.router import Router, RouterPolicy
from kvshare_research.core.running import WorkerPolicy
from kvshare_research.core.shaping import UNSHAPED, Shape
from kvshare_research.core.worker import Worker
from kvshare_research.cost.links import LinkModel, LinkTable
from kvshare_research.cost.ttft import TtftCost
from kvshare_research.driver.simulator import Simulator
from kvshare_research.driver.simulator_engine import EngineModel
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace
from kvshare_research.index.reference import ReferenceIndex
from kvshare_research.retention.lru import LruRetention
from kvshare_research.schedule.fcfs import FcfsSchedule
from kvshare_research.selector.cheapest import Cheapest

from .prompts import Tokens, Writer, random_text
from .scores import Floats

VICTIM, ATTACKER, OTHERS = 1, 2, 3
GUILD = Scope(GROUP, 1)
BASE = (
    Directory(
        tenants=("victim", "attacker", "others"),
        groups=("guild",),
        scopes=(EVERYBODY, GUILD, *(Scope(TENANT, i) for i in (VICTIM, ATTACKER, OTHERS))),
    )
    .granted(VICTIM, 1)
    .granted(ATTACKER, 1)
)
BLOCK_TOKENS, BLOCK_BYTES = 16, 1 << 19
RTT_US = 200
FIRST_COME = FcfsSchedule()
VOCABULARY = 50_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where the attack takes place. Times in us."""

    nodes: int
    secrets: int
    candidates: int
    template_blocks: int
    secret_blocks: int
    gap_us: int  # between two probes; 0 sends all candidates of a secret at once
    others_gap_us: int  # mean time between two requests of others
    jitter_us: int  # standard deviation of what the way to the attacker adds
    us_per_token: int
    capacity_blocks: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What the attacker does besides guessing, and where it meets the fleet."""

    schedule: Schedule = FIRST_COME
    dummies: int = 0  # prompts that keep the engine busy, so that all candidates of a secret wait together
    apart: bool = False  # the victim is nearest to node 1, the attacker to node 0, others pinned; else all anywhere
    claims: bool = False  # its prompts say that they are the victim's
    believed: bool = False  # a hole: the driver takes the claim for the identity


PLAIN = Ways()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the attacker is told of each probe: [secret, candidate], candidate 0 the right one."""

    ttft_us: Floats
    finished_us: Floats
    reused_tokens: Floats
    elsewhere: Floats  # 1 where it was told of another node than the nearest
    late: Floats  # 1 where the answer came later than its shape: not told, but what shapes must avoid


@dataclass(slots=True)
class _Trace:
    """Requests in order of arrival, and which (secret, candidate) a request number stands for."""

    arrivals: list[tuple[Request, Chain]]
    probes: dict[int, tuple[int, int]]


def play(
    scene: Scene, tenancy: Tenancy, *, shared_secret: bool = False, shape: Shape = UNSHAPED, ways: Ways = PLAIN
) -> Seen:
    """All probes of all secrets under one tenancy. `shared_secret`: the secret stands in text of a group that the
    attacker belongs to. `shape`: how the router holds answers back."""
    directory = tenancy.directory(BASE)
    directory = replace(directory, accounts=tenancy.accounts(directory, scene.capacity_blocks))
    trace = _trace(scene, tenancy, directory, GUILD if shared_secret else None, ways)
    sim = modelled_fleet(
        directory, ways.schedule, nodes=scene.nodes, capacity_blocks=scene.capacity_blocks,
        us_per_token=scene.us_per_token, seed=scene.seed, shape=shape,
    )  # fmt: skip
    sim.feed(iter(trace.arrivals))
    return _seen(scene, trace, sim.run())


def _coefficients(us_per_token: int) -> PrefillCoefficients:
    per_token_ps = us_per_token * PS_PER_US
    return PrefillCoefficients(1_000 * PS_PER_US, per_token_ps, per_token_ps // 1_000, 0, 0)


def modelled_fleet(
    directory: Directory, schedule: Schedule, *, nodes: int, capacity_blocks: int, us_per_token: int, seed: int,
    shape: Shape = UNSHAPED,
) -> Simulator:  # fmt: skip
    """Empty shipped workers behind one router, with equal links and a modelled engine."""
    coefficients = _coefficients(us_per_token)
    cost = TtftCost(**coefficients._asdict(), merge_ps_per_byte=0)
    link = LinkRow(rtt_us=RTT_US, rtt_high_us=RTT_US, ps_per_byte=800, ps_per_byte_high=800)
    policy = WorkerPolicy(
        retention=LruRetention(), schedule=schedule, block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES
    )
    router = Router(
        policy=RouterPolicy(
            cost=cost, selector=Cheapest(), actions=frozenset(Action), block_bytes=BLOCK_BYTES, shape=shape
        ),
        directory=directory,
        index=ReferenceIndex().new_store(nodes),
        links=LinkTable.start(nodes, LinkModel(rtt_us=RTT_US, ps_per_byte=800)),
        node_count=nodes,
    )

    def worker(node: int) -> Worker:
        ledger = Ledger(capacity_blocks=capacity_blocks, accounts=directory.accounts, retention=policy.retention)
        return Worker(node=node, incarnation=1, policy=policy, ledger=ledger, directory=directory)

    return Simulator(
        router=router,
        workers=[worker(node) for node in range(nodes)],
        links=[[link] * nodes] * nodes,
        engine=EngineModel(prefill=coefficients, decode_step_ps=10 * PS_PER_US),
        block_bytes=BLOCK_BYTES,
        seed=seed,
    )


def _trace(scene: Scene, tenancy: Tenancy, directory: Directory, shared: Scope | None, ways: Ways) -> _Trace:
    """Victims, probes and bystanders, by arrival time."""
    draw = np.random.default_rng(scene.seed)
    ring, space = KeyRing(RootSecret.from_seed(scene.seed)), ModelSpace(
        model="modelled", dtype="float16", block_tokens=BLOCK_TOKENS
    )  # fmt: skip

    template = random_text(draw, VOCABULARY, scene.template_blocks * BLOCK_TOKENS)
    writer = Writer(
        tenancy=tenancy, directory=directory, ring=ring, space=space, draw=draw, vocabulary=VOCABULARY,
        template=template, shared=shared,
    )  # fmt: skip
    text = writer.text
    plan: list[tuple[int, int, NDArray[np.uint32], tuple[int, int] | None]] = []
    work_us = scene.us_per_token * BLOCK_TOKENS * (scene.template_blocks + scene.secret_blocks)
    room_us = max(scene.gap_us, 3 * work_us // 2)  # the victim is done before the first probe
    for secret in range(scene.secrets):
        start = secret * room_us * (scene.candidates + 2)
        candidates = [text(scene.secret_blocks) for _ in range(scene.candidates)]
        plan.append((start, VICTIM, candidates[0], None))
        busy_us = start + room_us // 2 if ways.apart else start + room_us - 1
        plan.extend((busy_us, OTHERS, text(scene.secret_blocks), None) for _ in range(ways.dummies))
        for position, candidate in enumerate(draw.permutation(scene.candidates)):
            at_us = start + room_us + position * scene.gap_us
            plan.append((at_us, ATTACKER, candidates[candidate], (secret, int(candidate))))
    plan.extend((at_us, OTHERS, text(scene.secret_blocks), None) for at_us in _others(scene, draw, plan[-1][0]))
    plan.sort(key=lambda row: row[0])
    written = (
        _written(writer, scene, ways, tenant, secret, at_us, i) for i, (at_us, tenant, secret, _) in enumerate(plan)
    )
    arrivals = [(request, made) for request, made, _ in written]
    return _Trace(arrivals, {i: probe for i, (_, _, _, probe) in enumerate(plan) if probe is not None})


def _written(
    writer: Writer, scene: Scene, ways: Ways, tenant: int, secret: Tokens, at_us: int, number: int
) -> tuple[Request, Chain, Tokens]:
    """One prompt; the attacker's says it is the victim's if it claims so, and is, if it is believed."""
    claims = ways.claims and tenant == ATTACKER
    request, made, tokens = writer.prompt(
        VICTIM if claims and ways.believed else tenant, secret, number=number, at_us=at_us, node_count=scene.nodes,
        asks_as=VICTIM if claims else None,
    )  # fmt: skip
    if ways.apart:
        node = number % scene.nodes if tenant == OTHERS else int(tenant == VICTIM)
        request = structs.replace(request, ingress=node, executor=node if tenant == OTHERS else None)
    return request, made, tokens


def _others(scene: Scene, draw: np.random.Generator, end_us: int) -> Iterator[int]:
    """Arrival times of bystanders, exponential gaps."""
    at_us = 0.0
    while scene.others_gap_us and (at_us := at_us + draw.exponential(scene.others_gap_us)) < end_us:
        yield int(at_us)


def _seen(scene: Scene, trace: _Trace, outcomes: list[Outcome]) -> Seen:
    noise = np.random.default_rng(scene.seed + 1).normal(0, scene.jitter_us, (scene.secrets, scene.candidates))
    ttft, finished, reused, elsewhere, late = (np.zeros((scene.secrets, scene.candidates)) for _ in range(5))
    for outcome in outcomes:
        at = trace.probes.get(outcome.request_id)
        if at is not None:
            ttft[at] = outcome.ttft_us + noise[at]
            finished[at] = outcome.arrival_us + outcome.end_to_end_us + noise[at]
            reused[at] = outcome.shown_tokens
            elsewhere[at] = outcome.shown_executor not in (NO_NODE, outcome.ingress)
            late[at] = outcome.shape_us > 0 and outcome.held_us == 0
    return Seen(ttft_us=ttft, finished_us=finished, reused_tokens=reused, elsewhere=elsewhere, late=late)
