"""Where a membership attack takes place: a simulated fleet, or a cluster of ranks. The machines are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import Outcome
from kvshare_research.core.ports import Noise
from kvshare_research.disclosure.noise import SeededNoise, SystemNoise
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace
from kvshare_research.privacy.desk import Desk

from .assembly import StudyAssembly, component, parties
from .disclosing import Discloser, before_cluster, before_simulator
from .membership import Asked, Stage
from .prompts import Hasher
from .simulated import build_fleet, node_count_of

if TYPE_CHECKING:
    from kvshare_research.config import Run
    from kvshare_research.driver.cluster import Cluster

GAP_US = 1_000


class SimulatedStage:
    """A fleet in virtual time; noise from the seed."""

    label = "simulated"

    def __init__(self, run: Run) -> None:
        self._run = run
        self._fleet = build_fleet(run, dict(run.resolved))
        self._fleet.discloser = None
        self.directory: Directory = self._fleet.hasher.directory
        self.block_tokens = self._fleet.hasher.space.block_tokens
        self.node_count = node_count_of(run)
        self._discloser: Discloser | None = None

    def noise(self) -> Noise:
        return SeededNoise(self._run.values.seed)

    def open(self, desk: Desk) -> Discloser:
        self._discloser = before_simulator(self._fleet.simulator, self._fleet.hasher, desk)
        return self._discloser

    def serve(self, asked: list[Asked]) -> list[Outcome]:
        assert self._discloser is not None
        simulator = self._fleet.simulator
        for request, tokens in asked:
            made, chain = self._discloser.arrive(request, tokens, 0)
            simulator.inject(replace(made, arrival_us=simulator.now_us + GAP_US), chain)
            simulator.run()
        return _in_order(asked, simulator.outcomes)

    def settle(self, discloser: Discloser) -> None:
        self._fleet.simulator.run()


class RankStage:
    """A cluster of ranks with a real engine; noise from the system's entropy."""

    def __init__(self, run: Run, cluster: Cluster) -> None:
        config = dict(run.resolved)
        cluster.load(config)
        cluster.reset(config)
        first = cluster.engines[0]
        self.label = f"measured on {cluster.node_count} workers, {first.model}"
        capacity = min(row.capacity_blocks for row in cluster.engines)
        self.directory, _ = parties(config, capacity_blocks=capacity, block_bytes=first.block_bytes)
        self.block_tokens = int(config["engine"]["block_tokens"])
        self.node_count = cluster.node_count
        space = ModelSpace(
            model=first.fingerprint, dtype=str(config["engine"]["dtype"]), block_tokens=self.block_tokens
        )
        ring = KeyRing(RootSecret.resolve(path=run.values.secret_file, seed=run.values.seed))
        self._hasher = Hasher(
            tenancy=component(config, "tenancy"), directory=self.directory, ring=ring, space=space, discloses=True
        )
        self._cluster = cluster

    def noise(self) -> Noise:
        return SystemNoise()

    def open(self, desk: Desk) -> Discloser:
        made = before_cluster(self._cluster, self._hasher, desk)
        self._cluster.prepare = lambda request, tokens, _: made.arrive(request, tokens, 0)  # released when told to
        return made

    def serve(self, asked: list[Asked]) -> list[Outcome]:
        given = [(0, *self._hasher.chained(request, tokens)[:2], tokens) for request, tokens in asked]
        return _in_order(asked, list(self._cluster.play_idle(given).outcomes))

    def settle(self, discloser: Discloser) -> None:
        router = self._cluster.router
        assert router is not None
        self._cluster.wait_until(router.promotion.settled, "install what was released")


def _in_order(asked: list[Asked], outcomes: list[Outcome]) -> list[Outcome]:
    found = {o.request_id: o for o in outcomes}
    return [found[request.request_id] for request, _ in asked]


def simulated(run: Run, play: Callable[[Stage], int]) -> int:
    """The attack in virtual time; its exit code."""
    return play(SimulatedStage(run))


def on_ranks(run: Run, play: Callable[[Stage], int]) -> int:
    """The attack on the ranks of this job; the exit code of this rank."""
    from kvshare_research.driver.mpi import launch

    return launch(lambda cluster: play(RankStage(run, cluster)), StudyAssembly())
