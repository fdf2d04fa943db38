"""A study in virtual time, in one process: the same cases, machines and records as on ranks, labelled simulated.

Where a workload has tenants or regions that its trace does not tell, the label is composed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from msgspec import structs

from kvshare_research.config import Run
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Chain, Outcome, Request, Status
from kvshare_research.core.ports import FUTURE, Selector
from kvshare_research.core.worker import Worker
from kvshare_research.cost.links import LinkModel, LinkTable
from kvshare_research.disclosure.never import NeverDisclosure
from kvshare_research.driver.arriving import Entrance
from kvshare_research.driver.assembly import Place
from kvshare_research.driver.relaxed import Relaxed
from kvshare_research.driver.simulator import Simulator
from kvshare_research.driver.simulator_spec import SimulatorDriver, coefficients_of, link_rows
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace
from kvshare_research.metrics.records import BASELINE, CaseResult, Counters, Label
from kvshare_research.report.progress import Progress
from kvshare_research.selector.bound import Bound
from kvshare_research.workload.arrivals import Poisson
from kvshare_research.workload.base import PromptItem, WorkloadInput
from kvshare_research.workload.trace import Reading

from . import counting
from .assembly import StudyAssembly, check_retention, component, parties, priced
from .disclosing import Discloser, in_simulator
from .plan import IDLE, Case, cases
from .prompts import Hasher, detail_of
from .settings import case_config, choice, name_of, names
from .sizing import check_untimed, is_timed, sized, warmup_of, with_count

SERVICE_REQUESTS = 5  # idle recomputed requests that define the service time behind "utilisation"
HASHED_TOGETHER = 128  # prompts; 16 fill the lanes of the hash, more at a time find its code and tables at hand
TOLD_EVERY = 200  # requests between two words on progress


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The machines of one case, and what turns an item of its workload into an arrival."""

    simulator: Simulator
    hasher: Hasher
    discloser: Discloser | None
    future: dict[bytes, list[int]] = field(default_factory=dict)  # what an oracle is told

    def ask(self, arrivals: Iterable[tuple[Request, Chain]]) -> list[Outcome]:
        """All of them were asked, each at its own time, and ended; ConfigError for one that this fleet cannot be asked
        (`driver/arriving.py`)."""
        self.simulator.feed(Entrance(node_count=len(self.simulator.workers)).checked(arrivals))
        return self.simulator.run()

    def foretold(self, arrivals: Iterable[tuple[Request, Chain]]) -> list[tuple[Request, Chain]]:
        """The same arrivals; every block's are in `future` now."""
        if self.discloser is not None:
            raise ConfigError("`retention` knows all arrivals beforehand; what is disclosed at each is not known then")
        rows = list(arrivals)
        for request, hashed in rows:
            for block_hash in hashed.block_hashes(0, hashed.block_count):
                self.future.setdefault(block_hash, []).append(request.arrival_us)
        return rows

    def arrival(self, item: PromptItem, request_id: int, arrival_us: int) -> tuple[Request, Chain]:
        """The item under this tenancy, with what is disclosed by now; its tokens are not kept."""
        named = _named(item, request_id, arrival_us)
        if self.discloser is not None:
            return self.discloser.arrive(named, item.tokens, arrival_us)
        return self.hasher.chained(named, item.tokens)[:2]

    def arrivals(self, items: Iterable[PromptItem]) -> Iterator[tuple[Request, Chain]]:
        """The items at their own times, numbered in their order. Some are read ahead and hashed together, unless what
        is disclosed by then changes their names."""
        numbered = enumerate(items)
        if self.discloser is not None:
            yield from (self.arrival(item, index, item.request.arrival_us) for index, item in numbered)
        while ahead := list(islice(numbered, HASHED_TOGETHER)):
            asked = [(_named(item, index, item.request.arrival_us), item.tokens) for index, item in ahead]
            yield from (row[:2] for row in self.hasher.chained_together(asked))


def _named(item: PromptItem, request_id: int, arrival_us: int) -> Request:
    request, application = item.request, item.application
    if (request.request_id, request.arrival_us, request.application) == (request_id, arrival_us, application):
        return request
    return structs.replace(request, request_id=request_id, arrival_us=arrival_us, application=application)


def build_fleet(run: Run, config: Mapping[str, Any]) -> Fleet:
    """Router, workers, engines and links of one case, all empty."""
    driver: SimulatorDriver = run.parts["driver"]
    block_tokens = block_tokens_of(run, config)
    plain = dict(config) | {"engine": dict(config["engine"]) | {"block_tokens": block_tokens}}
    nodes = node_count_of(run)
    block_bytes, capacity = driver.kv_bytes_per_token * block_tokens, driver.pool_tokens // block_tokens
    if driver.prefill is not None and not driver.miscalibrated:
        plain["cost"] = dict(plain["cost"]) | driver.prefill.coefficients._asdict()
    if not driver.miscalibrated:
        plain["cost"] = dict(plain["cost"]) | driver.decode_fields()
    assembly = StudyAssembly()

    future: dict[bytes, list[int]] = {}

    def worker(node: int, incarnation: int) -> Worker:
        place = Place(
            node=node, node_count=nodes, capacity_blocks=capacity, block_bytes=block_bytes, incarnation=incarnation
        )
        made = assembly.worker(plain, place)
        made.policy = replace(made.policy, batch_max=driver.batch_max)
        made.ledger.values.future = future
        return made

    place = Place(node=None, node_count=nodes, capacity_blocks=capacity, block_bytes=block_bytes, incarnation=1)
    router = assembly.router(plain, place)
    router.policy = replace(router.policy, batch_max=driver.batch_max)
    links = link_rows(component(plain, "link"), nodes)
    if nodes > 1:
        first = links[0][1]
        router.links = _known(LinkModel(rtt_us=first.rtt_us, ps_per_byte=first.ps_per_byte), links)
    cost = priced(plain)
    truth = coefficients_of(cost) if driver.prefill is None else driver.prefill.coefficients
    simulator = _kind(plain, router.policy.selector)(
        router=router,
        workers=[worker(node, 1) for node in range(nodes)],
        links=links,
        engine=driver.engine(truth, cost.merge_ps_per_byte),
        block_bytes=block_bytes,
        event_delay_us=driver.event_delay_us,
        event_loss_ratio=driver.event_loss_ratio,
        seed=run.values.seed,
        step_by_step=driver.step_by_step,
        revive=worker,
    )
    for row in driver.failures:
        if row.node >= nodes:
            raise ConfigError(f"`driver.failures` names node {row.node} of a fleet of {nodes}")
        simulator.fail(row.node, row.at_us, noticed_us=row.noticed_us, back_us=row.back_us)
    directory, _ = parties(plain, capacity_blocks=capacity, block_bytes=block_bytes)
    space = ModelSpace(model="simulated", dtype="none", block_tokens=block_tokens)
    ring = KeyRing(RootSecret.resolve(path=run.values.secret_file, seed=run.values.seed))
    hasher = Hasher(
        tenancy=component(plain, "tenancy"), directory=directory, ring=ring, space=space,
        discloses=not isinstance(component(plain, "disclosure"), NeverDisclosure),
        detail=detail_of(plain, run.parts["engine"].open_tokenizer),
    )  # fmt: skip
    discloser = in_simulator(plain, simulator, hasher, run.values.seed)
    return Fleet(simulator=simulator, hasher=hasher, discloser=discloser, future=future)


def _kind(config: Mapping[str, Any], selector: Selector) -> type[Simulator]:
    """The fleet as it is, or relaxed; ConfigError for what the bound does not hold for."""
    if not isinstance(selector, Bound):
        return Simulator
    if not isinstance(component(config, "disclosure"), NeverDisclosure):
        raise ConfigError("`selector` is a `Bound`: what an operator computes for what is disclosed is not in it")
    return Relaxed


def node_count_of(run: Run) -> int:
    """Workers of the simulated fleet."""
    nodes: int | None = run.parts["driver"].node_count
    return run.values.ranks - 1 if nodes is None else nodes


def block_tokens_of(run: Run, config: Mapping[str, Any]) -> int:
    """The block of the pool: as configured, else the trace's own, else the engine's; ConfigError if they clash."""
    own: int | None = getattr(component(config, "workload"), "block_tokens", None)
    given: int | None = run.parts["driver"].block_tokens
    if own is not None and given is not None and own % given:
        raise ConfigError(f"`driver.block_tokens` is {given}, expected a divisor of the trace's block of {own} tokens")
    return given or own or int(config["engine"]["block_tokens"])


def _known(model: LinkModel, links: list[list[Any]]) -> LinkTable:
    """The router starts with the true means of all links."""
    import numpy as np

    rtt = np.array([[row.rtt_us for row in rows] for rows in links], np.int64)
    high = np.array([[row.rtt_high_us for row in rows] for rows in links], np.int64)
    rate = np.array([[row.ps_per_byte for row in rows] for rows in links], np.int64)
    spread = np.maximum(0, high - rtt) // 2
    return LinkTable.known(model, rtt, spread, rate, np.zeros_like(rate))


@dataclass(slots=True, kw_only=True)
class SimulatedSession:
    """One study in virtual time. `results` grows case by case."""

    run: Run
    progress: Progress
    results: list[CaseResult] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    logs: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    _service_us: dict[float | None, float] = field(default_factory=dict)
    _tokenizer: Any = None

    def play(self) -> None:
        """All cases of the study are in `results`; probes of real transfers are left out, with a note."""
        if self.run.parts["events"].publish:
            raise ConfigError("`events.publish` tells what real workers hold; it needs driver=mpi")
        check_untimed(self.run.parts["study"], self.run.parts["workload"])
        for case in cases(self.run.parts["study"]):
            check_retention(case_config(dict(self.run.resolved), case), simulated=True)
        recorded = is_timed(self.run.parts["workload"])
        for case in cases(self.run.parts["study"]):
            if case.block.kind == "probe":
                self.notes[f"left out: {case.title}"] = "probes measure real transfers; they need driver=mpi"
                self.progress.say(f"left out: {case.title}: probes measure real transfers, they need driver=mpi")
                continue
            played = replace(case, recorded=recorded)
            self.results.append(self._case(played, case_config(dict(self.run.resolved), played)))

    # ------------------------------------------------------------------ one case
    def _case(self, case: Case, config: dict[str, Any]) -> CaseResult:
        fleet = build_fleet(self.run, config)
        workload = component(config, "workload")
        timed = is_timed(workload)
        service_us, rate_per_s = None, None
        if not timed and case.utilisation != IDLE:
            service_us = self._idle_service_us(case, config)
            rate_per_s = case.utilisation * node_count_of(self.run) / service_us * 1e6
        reading = Reading()
        items = self._items(case, config, sized(workload, case.block), fleet, reading)
        self.progress.stage(case.title)
        started_s = time.process_time()
        oracle = FUTURE in component(config, "retention").needs
        if timed:
            arrivals = self._told(fleet.arrivals(items))
            outcomes = fleet.ask(fleet.foretold(arrivals) if oracle else arrivals)
        elif service_us is None and oracle:
            raise ConfigError(
                "`retention` knows all arrivals beforehand, and idle ones have no time: set `utilisation`"
            )
        elif service_us is None:
            outcomes = _one_by_one(fleet, items)
        else:
            given = list(items)
            poisson = Poisson(utilisation_ratio=case.utilisation)
            times = poisson.plan(
                len(given), worker_count=node_count_of(self.run), service_us=service_us, seed=case.seed
            ).times_us
            rows = enumerate(zip(given, times, strict=True))
            asked = (fleet.arrival(item, i, time_us) for i, (item, time_us) in rows)
            outcomes = fleet.ask(fleet.foretold(asked) if oracle else asked)
        self.notes[f"cpu seconds: {case.title}"] = round(time.process_time() - started_s, 2)
        if reading.refused:
            self.notes[f"lines left out: {case.title}"] = {"count": reading.refused, "first": reading.reasons}
        if fleet.discloser is not None:
            self.notes[f"disclosure in {case.title}"] = fleet.discloser.notes()
        return self._record(case, config, fleet, outcomes, rate_per_s)

    def _told(self, arrivals: Iterator[tuple[Request, Chain]]) -> Iterator[tuple[Request, Chain]]:
        for count, arrival in enumerate(arrivals, 1):
            if count % TOLD_EVERY == 0:
                self.progress.advance(TOLD_EVERY)
            yield arrival

    def _items(
        self, case: Case, config: Mapping[str, Any], workload: Any, fleet: Fleet, reading: Reading
    ) -> Iterator[PromptItem]:
        simulator = fleet.simulator
        capacity = simulator.workers[0].ledger.node.capacity
        base, catalogue = parties(config, capacity_blocks=capacity, block_bytes=simulator.block_bytes)
        timed = is_timed(workload)
        given = WorkloadInput(
            tokenizer=self._open_tokenizer(timed),
            directory=base,
            catalogue=catalogue,
            seed=self.run.values.seed + case.seed,
            block_tokens=fleet.hasher.space.block_tokens,
            node_count=node_count_of(self.run),
            pool_blocks=capacity * node_count_of(self.run),
        )
        yield from workload.stream(given, reading) if timed else workload.make(given)

    def _open_tokenizer(self, timed: bool) -> Any:
        if timed:
            return None  # a trace names its content
        if self._tokenizer is None:
            self._tokenizer = self.run.parts["engine"].open_tokenizer()
        return self._tokenizer

    def _idle_service_us(self, case: Case, config: Mapping[str, Any]) -> float:
        """Mean idle end-to-end time of recomputed requests of this workload: what utilisation is counted in."""
        if case.overlap not in self._service_us:
            base = dict(config) | {
                "selector": choice("selector", BASELINE),
                "disclosure": choice("disclosure", "never"),
            }
            fleet = build_fleet(self.run, base)
            workload = with_count(component(base, "workload"), SERVICE_REQUESTS)
            outcomes = _one_by_one(fleet, self._items(case, base, workload, fleet, Reading()))
            times = [o.end_to_end_us - o.held_us for o in outcomes if o.status == Status.DONE]
            if not times:
                raise ConfigError(f"no request of this workload can be served: {outcomes[0].reason}")
            self._service_us[case.overlap] = sum(times) / len(times)
            self.notes[f"service_us at overlap {case.overlap}"] = self._service_us[case.overlap]
        return self._service_us[case.overlap]

    def _record(
        self, case: Case, config: Mapping[str, Any], fleet: Fleet, outcomes: list[Outcome], rate_per_s: float | None
    ) -> CaseResult:
        simulator = fleet.simulator
        workload = component(config, "workload")
        warm = warmup_of(workload, case.block, self.run.parts["driver"].warmup_ratio, simulator.injected)
        # A modelled engine produces no tokens: nothing may look as if answers had been compared.
        rows = tuple(
            structs.replace(o, warmup=o.request_id < warm, output_tokens=())
            for o in sorted(outcomes, key=lambda o: o.request_id)
        )
        composed = is_timed(workload) and (len(fleet.hasher.directory.tenants) > 1 or node_count_of(self.run) > 1)
        return counting.result(
            case,
            label=Label.COMPOSED if composed else Label.SIMULATED,
            settings=names(self.run.resolved, case),
            workload=name_of("workload", self.run.resolved["workload"]),
            content_known=getattr(workload, "content_known", True),
            overlap=case.overlap,
            outcomes=rows,
            counters=_counters(simulator, rows),
            rate_per_s=rate_per_s,
            expected=simulator.injected,
        )


def _one_by_one(fleet: Fleet, items: Iterable[PromptItem]) -> list[Outcome]:
    """Each request arrives when the one before has ended."""
    simulator = fleet.simulator
    entrance = Entrance(node_count=len(simulator.workers))
    asked = (fleet.arrival(item, index, simulator.now_us) for index, item in enumerate(items))
    for request, chain in entrance.checked(asked):
        simulator.inject(request, chain)
        simulator.run()
    return simulator.outcomes


def _counters(simulator: Simulator, outcomes: tuple[Outcome, ...]) -> Counters:
    held = [{b.block_hash for b in worker.ledger.named()} for worker in simulator.workers]
    others = {f"index: {name}": count for name, count in simulator.router.replica.counters.items()}
    others |= dict(simulator.counters) | {
        "events": simulator.events,
        "evictions": sum(worker.ledger.evicted_blocks for worker in simulator.workers),
        "in flight at the end": simulator.router.in_flight,
    }
    return Counters(
        wire_bytes=simulator.moved_bytes,
        planned_bytes=sum(o.pulled_bytes for o in outcomes),
        block_bytes=simulator.block_bytes,
        node_stored_blocks=tuple(len(blocks) for blocks in held),
        node_unique_blocks=tuple(len(blocks) for blocks in held),
        fleet_unique_blocks=len(set().union(*held)),
        wall_us=simulator.now_us,
        others=tuple(sorted(others.items())),
    )
