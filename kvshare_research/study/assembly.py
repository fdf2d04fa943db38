"""From a case's configuration to routers, workers, engines and links: the same on every rank and in a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from kvshare_research.build import build
from kvshare_research.config import SEAMS
from kvshare_research.core.costing import PS_PER_US, prefill_ps
from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import PERMILLE, Action
from kvshare_research.core.ports import ATTENTION, FUTURE, QUEUE, Prefetch, Retention
from kvshare_research.core.router import Router, RouterPolicy
from kvshare_research.core.running import WorkerPolicy
from kvshare_research.core.shaping import Shape, ShapeKind
from kvshare_research.core.worker import Worker
from kvshare_research.cost.links import LinkModel, LinkTable
from kvshare_research.cost.ttft import TtftCost, prepare
from kvshare_research.driver.assembly import Assembly, Config, Place
from kvshare_research.driver.hearing import SILENCE_US
from kvshare_research.engine.base import Engine
from kvshare_research.events.publish import Events, Tap
from kvshare_research.prefetch.off import OffPrefetch
from kvshare_research.selector.bound import Bound
from kvshare_research.transport.link import Link
from kvshare_research.transport.mpi import Endpoint
from kvshare_research.workload.catalogue import Catalogue
from kvshare_research.workload.parties import load_parties

CALIBRATION = "calibration"  # a case carries here what was measured before it: cost coefficients and link samples


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on time and memory that every worker keeps. Times in us."""

    lease_us: int
    fetch_deadline_us: int
    admitted_max: int
    guess_us: int
    node_silence_us: int = SILENCE_US
    shape: ShapeKind = ShapeKind.NONE
    shape_margin_permille: int = PERMILLE

    def __post_init__(self) -> None:
        for name in ("lease_us", "fetch_deadline_us", "admitted_max", "node_silence_us", "shape_margin_permille"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`limits.{name}` is `{getattr(self, name)}`, expected at least 1")


def component(config: Config, group: str) -> Any:
    """The component that the configuration names for a group."""
    return build(config[group], group, SEAMS.get(group))


def parties(config: Config, *, capacity_blocks: int, block_bytes: int) -> tuple[Directory, Catalogue]:
    """The directory this case runs on, with one account per scope in blocks, and the operator's catalogue."""
    base, catalogue = load_parties(config["tenants"], "conf/tenants")
    tenancy = component(config, "tenancy")
    sized = catalogue.sized(base, block_bytes=block_bytes, capacity_blocks=capacity_blocks)
    directory = tenancy.directory(sized)
    accounts = tenancy.accounts(directory, capacity_blocks)
    return replace(directory, accounts=accounts), catalogue


def priced(config: Config) -> TtftCost:
    """The cost model with measured coefficients where there are any, else with the configured ones."""
    measured: Mapping[str, Any] = config.get(CALIBRATION) or {}
    cost: TtftCost = component(config, "cost")
    return replace(cost, **measured.get("cost", {}))


def known_links(config: Config, node_count: int) -> LinkTable:
    """The links as calibration measured them, or as assumed."""
    table = LinkTable.start(node_count, LinkModel())
    measured: Mapping[str, Any] = config.get(CALIBRATION) or {}
    for source, reader, bytes_moved, elapsed_us in measured.get("link_samples", ()):
        table = table.measured(source, reader, bytes_moved, elapsed_us, 0)
    return table


def actions(config: Config) -> frozenset[Action]:
    """The ways a selector may choose among."""
    return frozenset(Action[str(name).upper()] for name in config["actions"])


def check_retention(config: Config, *, simulated: bool) -> None:
    """ConfigError if the retention policy needs to know what nobody here can tell it."""
    policy: Retention = component(config, "retention")
    attends = not simulated and config["engine"].get("attention_rows", 0) > 0
    told = {QUEUE} | ({FUTURE} if simulated else set()) | ({ATTENTION} if attends else set())
    name = type(policy).__name__
    if FUTURE in policy.needs - told:
        raise ConfigError(f"`retention` is a `{name}`: it knows all requests beforehand, which needs driver=simulator")
    if ATTENTION in policy.needs - told:
        raise ConfigError(
            f"`retention` is a `{name}`: it needs an engine that reports attention, say engine.attention_rows=16 "
            "with driver=mpi; the simulator computes none"
        )


def check_selector(config: Config) -> None:
    """ConfigError if ranks are to be routed by what is no policy."""
    if isinstance(component(config, "selector"), Bound):
        raise ConfigError("`selector` is a `Bound`: it serves nobody and needs driver=simulator")


def foreseen(config: Config) -> Prefetch | None:
    """The prefetch policy, or None where nothing is ever prefetched."""
    policy: Prefetch = component(config, "prefetch")
    return None if isinstance(policy, OffPrefetch) else policy


@final
class StudyAssembly(Assembly):
    """Builds machines from a case's configuration; holds nothing."""

    def engine(self, config: Config, local_rank: int) -> Engine:
        engine: Engine = component(config, "engine").load(local_rank)
        return engine

    def worker(self, config: Config, place: Place) -> Worker:
        assert place.node is not None
        directory, _ = parties(config, capacity_blocks=place.capacity_blocks, block_bytes=place.block_bytes)
        limits: Limits = component(config, "limits")
        block_tokens = int(config["engine"]["block_tokens"])
        ledger = Ledger(
            capacity_blocks=place.capacity_blocks,
            accounts=directory.accounts,
            retention=component(config, "retention"),
            recompute_us=prefill_ps(priced(config).coefficients, block_tokens, 0) // PS_PER_US,
        )
        policy = WorkerPolicy(
            retention=ledger.retention,
            schedule=component(config, "schedule"),
            block_tokens=block_tokens,
            block_bytes=place.block_bytes,
            lease_us=limits.lease_us,
            fetch_deadline_us=limits.fetch_deadline_us,
            admitted_max=limits.admitted_max,
        )
        return Worker(node=place.node, incarnation=place.incarnation, policy=policy, ledger=ledger, directory=directory)

    def router(self, config: Config, place: Place) -> Router:
        prepare()  # no decision waits for the compiler
        directory, _ = parties(config, capacity_blocks=place.capacity_blocks, block_bytes=place.block_bytes)
        cost = priced(config)
        limits: Limits = component(config, "limits")
        policy = RouterPolicy(
            cost=cost,
            selector=component(config, "selector"),
            actions=actions(config),
            block_bytes=place.block_bytes,
            guess_us=limits.guess_us,
            prefetch=foreseen(config),
            learns_pace=not cost.no_pace,
            shape=Shape(kind=limits.shape, margin_permille=limits.shape_margin_permille),
        )
        return Router(
            policy=policy,
            directory=directory,
            index=component(config, "index").new_store(place.node_count),
            links=known_links(config, place.node_count),
            node_count=place.node_count,
        )

    def link(self, config: Config) -> Link:
        link: Link = component(config, "link")
        return link

    def wrap(self, endpoint: Endpoint, config: Config, node: int) -> Endpoint:
        return endpoint

    def tap(self, config: Config, place: Place) -> Tap | None:
        assert place.node is not None
        directory, _ = parties(config, capacity_blocks=place.capacity_blocks, block_bytes=place.block_bytes)
        events: Events = component(config, "events")
        return events.tap(place.node, int(config["engine"]["block_tokens"]), directory)
