"""Rank 0 of a study: loads the model once, calibrates, then plays case after case and keeps what came of each."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kvshare_research.config import Run
from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError, RemoteError
from kvshare_research.core.nouns import Outcome
from kvshare_research.cost.calibration import Calibration
from kvshare_research.disclosure.never import NeverDisclosure
from kvshare_research.driver.arriving import Entrance
from kvshare_research.driver.cluster import Cluster, Played, RunBroken
from kvshare_research.guard.keys import ENVIRONMENT_VARIABLE, KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace
from kvshare_research.metrics.records import BASELINE, CaseResult, Label
from kvshare_research.report.artefacts import COSTS_KNOWN
from kvshare_research.report.progress import Progress
from kvshare_research.workload.arrivals import Poisson
from kvshare_research.workload.base import PromptItem, WorkloadInput
from kvshare_research.workload.catalogue import Catalogue

from . import counting
from .assembly import check_retention, check_selector, component, parties, priced
from .calibrate import applied, calibrated, link_samples
from .disclosing import on_cluster
from .fitting import check_fits
from .pace import ServingPace, measured_pace
from .plan import IDLE, Case, cases
from .probe import play_probes
from .prompts import Hasher, Prompt, arrivals, detail_of, prompts
from .salvage import Diary
from .settings import canonical, case_config, choice, name_of, names
from .sizing import sized, with_count
from .twin import Machines, twin
from .uncertainty import known

SERVICE_REQUESTS = 5  # idle recomputed requests that define the service time behind "utilisation"


@dataclass(slots=True, kw_only=True)
class Session:
    """One study on one cluster. `results` grows case by case, so that an early end loses only the case under way."""

    run: Run
    cluster: Cluster
    progress: Progress
    diary: Diary | None = None
    results: list[CaseResult] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    logs: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    _resolved: dict[str, Any] = field(default_factory=dict)
    _service_us: dict[float | None, float] = field(default_factory=dict)
    _pace: ServingPace = field(default_factory=ServingPace)
    _links: dict[str, list[list[int]]] = field(default_factory=dict)
    _number: int = 0
    _tokenizer: Any = None
    _calibration: Calibration | None = None

    def play(self) -> None:
        """All cases of the study are in `results`; raises RunBroken after keeping a partial one."""
        self._resolved = dict(self.run.resolved)
        if self.run.values.secret_file is None and ENVIRONMENT_VARIABLE not in os.environ:
            self.progress.say(
                f"block hashes are keyed from the seed; for real tenants set `secret_file` or {ENVIRONMENT_VARIABLE}"
            )
        self.cluster.hearing.silence_us = self.run.parts["limits"].node_silence_us
        for case in cases(self.run.parts["study"]):
            check_fits(self.run.parts["engine"], component(case_config(self._resolved, case), "workload"))
        self.progress.stage("loading the model on every worker")
        self.cluster.load(self._resolved)
        for case in cases(self.run.parts["study"]):  # what cannot be built is refused before anything is measured
            config = case_config(self._resolved, case)
            check_retention(config, simulated=False)
            check_selector(config)
            directory, _ = self.parties(config)
            self.run.parts["events"].check(directory)
        self._calibration = calibrated(self)
        self.notes["calibration"] = self._calibration.to_dict()
        measured = applied(dict(self.run.resolved), self._calibration, [])
        self._pace = measured_pace(self, measured, priced(measured))
        self.notes["pace"] = asdict(self._pace)
        for case in cases(self.run.parts["study"]):
            config = self._calibrated(case_config(self._resolved, case))
            if case.block.kind == "probe":
                self._keep(*play_probes(self, case, config))
            else:
                self._keep(self._stream(case, config))
        named = {name_of("link", json.loads(link)): samples for link, samples in self._links.items()}
        self.notes[COSTS_KNOWN] = known(self._calibration, named)

    def _keep(self, *results: CaseResult) -> None:
        """Cases that are over, and already on disk in case the run is killed."""
        self.results.extend(results)
        if self.diary is not None:
            for result in results:
                self.diary.end(result)

    def _calibrated(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with its links known; each link setting is measured once."""
        link = canonical(config["link"])
        if link not in self._links:
            self._links[link] = link_samples(self, config)
        assert self._calibration is not None
        return applied(config, self._calibration, self._links[link])

    # ------------------------------------------------------------------ one case
    def _stream(self, case: Case, config: dict[str, Any]) -> CaseResult:
        given = self.prompts(case, config)
        rate_per_s = None
        times: Sequence[int] = (0,) * len(given)
        if case.utilisation != IDLE:
            service_us = self.service_us(case, config)
            poisson = Poisson(utilisation_ratio=case.utilisation)
            workers = self.cluster.node_count
            times = poisson.plan(len(given), worker_count=workers, service_us=service_us, seed=case.seed).times_us
            rate_per_s = poisson.rate_per_us(worker_count=workers, service_us=service_us) * 1e6
        self.progress.stage(case.title, len(given))
        self.cluster.reset(config, record=case.block.record)
        disclosing = on_cluster(config, self.cluster, self.hasher(config))
        schedule = arrivals(given, times)
        if self.diary is not None:
            self._open_diary(self.diary, case, config, given, rate_per_s)
        done = 0

        def told(ended: int, _all: int) -> None:
            nonlocal done
            self.progress.advance(ended - done)
            done = ended

        try:
            if case.utilisation == IDLE:
                played = self.cluster.play_idle(schedule, progress=told)
            else:
                played = self.cluster.play(schedule, progress=told)
        except RunBroken as error:
            self.results.append(self.record(case, config, error.partial, given, rate_per_s, str(error)))
            raise
        if played.logs:
            self.logs[case.title] = played.logs
        if disclosing is not None:
            self.notes[f"disclosure in {case.title}"] = disclosing.notes()
        if played.lost:  # the others have served what it left, but no further case would compare with those before
            reason = f"node {', '.join(map(str, played.lost))} was lost; the others served its requests"
            self.results.append(self.record(case, config, played, given, rate_per_s, reason))
            raise RemoteError(f"{reason}; the study ends here, and what was measured is kept, marked partial")
        made = self.record(case, config, played, given, rate_per_s)
        if disclosing is not None:
            self.notes[f"no twin: {case.title}"] = "what is disclosed when depends on the clock of the run"
            return made
        self.progress.stage(f"{case.title}: the same in virtual time")
        try:
            alike = twin(config, given, None if case.utilisation == IDLE else times, self._machines, case.seed)
        except Exception as error:  # noqa: BLE001  (what was measured is worth more than its twin)
            self.notes[f"no twin: {case.title}"] = f"{type(error).__name__}: {error}"
            self.progress.say(f"no twin of {case.title}: {type(error).__name__}: {error}")
            return made
        return replace(made, simulated=alike)

    def _open_diary(
        self, diary: Diary, case: Case, config: Mapping[str, Any], given: Sequence[Prompt], rate_per_s: float | None
    ) -> None:
        """From now on every request of this case is in the diary as it ends."""
        nothing = Played(outcomes=(), arrived_count=0, elapsed_us=0)
        diary.begin(self.record(case, config, nothing, given, rate_per_s))
        by_id, key = {prompt.request.request_id: prompt for prompt in given}, self.answer_key

        def ended(outcome: Outcome) -> None:
            diary.outcome(counting.told(outcome, by_id[outcome.request_id], key))

        self.cluster.told = ended

    def record(
        self, case: Case, config: Mapping[str, Any], played: Played, given: Sequence[Prompt],
        rate_per_s: float | None, partial_reason: str = "", selector: str | None = None,
    ) -> CaseResult:  # fmt: skip
        """The case as a record, with its labels."""
        settings = names(self._resolved, case) | ({"selector": selector} if selector else {})
        return counting.result(
            case,
            label=Label(component(config, "link").label),
            settings=settings,
            workload=name_of("workload", self.run.resolved["workload"]),
            overlap=config["workload"].get("overlap"),
            outcomes=counting.outcomes(played, given, self.answer_key),
            counters=counting.counters(played, given, self.cluster.router, self.block_bytes),
            rate_per_s=rate_per_s,
            expected=len(given),
            partial_reason=partial_reason,
        )

    # ------------------------------------------------------------------ what cases are made of
    @property
    def _machines(self) -> Machines:
        return Machines(
            node_count=self.cluster.node_count,
            capacity_blocks=min(row.capacity_blocks for row in self.cluster.engines),
            block_bytes=self.block_bytes,
            pace=self._pace,
        )

    @property
    def answer_key(self) -> bytes:
        """What answers are digested under: as secret as block hashes are."""
        return RootSecret.resolve(path=self.run.values.secret_file, seed=self.run.values.seed).derive(b"answers")

    @property
    def block_bytes(self) -> int:
        return self.cluster.engines[0].block_bytes

    @property
    def tokenizer(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = self.run.parts["engine"].open_tokenizer()
        return self._tokenizer

    def parties(self, config: Mapping[str, Any]) -> tuple[Directory, Catalogue]:
        capacity = min(row.capacity_blocks for row in self.cluster.engines)
        return parties(config, capacity_blocks=capacity, block_bytes=self.block_bytes)

    def items(self, case: Case, config: Mapping[str, Any], count: int | None) -> list[PromptItem]:
        """The items of the case, or `count` of the workload; the same for every selector, tenancy and link."""
        directory, catalogue = self.parties(config)
        workload = component(config, "workload")
        workload = sized(workload, case.block) if count is None else with_count(workload, count)
        given = WorkloadInput(
            tokenizer=self.tokenizer,
            directory=directory,
            catalogue=catalogue,
            seed=self.run.values.seed + case.seed,
            block_tokens=int(config["engine"]["block_tokens"]),
            node_count=self.cluster.node_count,
            pool_blocks=sum(row.capacity_blocks for row in self.cluster.engines),
        )
        made: list[PromptItem] = workload.make(given)
        if not made:
            raise ConfigError("the workload made no request")
        return made

    def hasher(self, config: Mapping[str, Any]) -> Hasher:
        directory, _ = self.parties(config)
        engine = config["engine"]
        space = ModelSpace(
            model=self.cluster.engines[0].fingerprint,
            dtype=str(engine["dtype"]),
            block_tokens=int(engine["block_tokens"]),
            template=self.tokenizer.version,
        )
        root = RootSecret.resolve(path=self.run.values.secret_file, seed=self.run.values.seed)
        return Hasher(
            tenancy=component(config, "tenancy"),
            directory=directory,
            ring=KeyRing(root),
            space=space,
            discloses=not isinstance(component(config, "disclosure"), NeverDisclosure),
            detail=detail_of(config, lambda: self.tokenizer),
        )

    def prompts(self, case: Case, config: Mapping[str, Any], count: int | None = None) -> list[Prompt]:
        items, warmup = self.items(case, config, count), case.block.warmup_requests
        made = prompts(items, self.hasher(config), case_number=self.next_number(), warmup_requests=warmup)
        entrance = Entrance(node_count=self.cluster.node_count)
        for prompt in made:
            entrance.check(prompt.request)
        return made

    def next_number(self) -> int:
        """A number for the request ids of one case."""
        self._number += 1
        return self._number

    def service_us(self, case: Case, config: Mapping[str, Any]) -> float:
        """Mean idle end-to-end time of recomputed requests of this workload: what utilisation is counted in."""
        if case.overlap not in self._service_us:
            base = dict(config) | {"selector": choice("selector", BASELINE), "link": choice("link", "loopback")}
            given = self.prompts(case, base, SERVICE_REQUESTS)[-SERVICE_REQUESTS:]
            self.progress.stage(f"{case.title}: idle service time", len(given))
            self.cluster.reset(base)
            played = self.cluster.play_idle(arrivals(given, (0,) * len(given)))
            times = [o.end_to_end_us - o.held_us for o in played.outcomes[1:]]
            self._service_us[case.overlap] = sum(times) / len(times)
            self.notes[f"service_us at overlap {case.overlap}"] = self._service_us[case.overlap]
        return self._service_us[case.overlap]
