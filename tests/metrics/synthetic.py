"""Cases of the real classes, by a small seeded queue: one worker, prefill and fetches that cost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvshare_research.core.nouns import Action, MissReason, Outcome, Status
from kvshare_research.metrics.records import CaseResult, Counters, Label

BLOCK = 16
BLOCK_BYTES = 16 * 22_500
MERGE_US, DECODE_US = 300, 40_000


def prefill_us(new: int, cached: int) -> float:
    return 3000.0 + 900.0 * new + 0.05 * new * cached + 0.025 * new * new


def _ways(selector: str, rng: np.random.Generator) -> Action:
    if selector == "recompute_always":
        return Action.RECOMPUTE
    if selector == "least_loaded":
        return (Action.RECOMPUTE, Action.RESIDENT)[int(rng.random() < 0.5)]
    return (Action.RESIDENT, Action.ROUTE, Action.PULL, Action.SPLIT)[int(rng.integers(4))]


class Work(NamedTuple):
    """What is asked, by request; the same whoever serves it."""

    lengths: list[int]
    arrivals_us: list[float]
    answers: list[tuple[int, ...]]
    rate_per_s: float | None


def _work(seed: int, overlap: float, count: int, utilisation: float | None, rate_per_s: float | None) -> Work:
    draw = np.random.default_rng((seed, round(100 * overlap)))
    lengths = draw.integers(20, 30, size=count) * BLOCK + draw.integers(1, BLOCK, size=count)
    gaps = draw.exponential(1.0, size=count)
    answers = draw.integers(0, 49152, size=(count, 4))
    service = float(np.mean([prefill_us(int(n), 0) for n in lengths]))
    if rate_per_s is None and utilisation is not None:
        rate_per_s = utilisation * 1e6 / service
    arrivals = np.cumsum(gaps) * 1e6 / rate_per_s if rate_per_s else np.arange(count) * 10 * service
    return Work(
        lengths=[int(n) for n in lengths],
        arrivals_us=[float(at) for at in arrivals],
        answers=[tuple(int(token) for token in row) for row in answers],
        rate_per_s=None if rate_per_s is None else float(rate_per_s),
    )


class Way(NamedTuple):
    """How one request is served: its action, the tokens that are kept, pulled and computed, and what chance adds."""

    action: Action
    kept: int
    pulled: int
    computed: int
    wobble: float
    dialled: int  # tokens that could be reused

    @property
    def fetch_us(self) -> int:
        return int((10_000 + self.pulled / BLOCK * BLOCK_BYTES / 125) * self.wobble) if self.pulled else 0

    @property
    def prefill_us(self) -> int:
        return int(prefill_us(self.computed, self.kept + self.pulled) * self.wobble)


def _way(selector: str, tokens: int, overlap: float, noise: float, chance: np.random.Generator) -> Way:
    action = _ways(selector, chance)
    reuse = 0 if action is Action.RECOMPUTE else int(tokens * overlap) // BLOCK * BLOCK
    pulled = {Action.PULL: reuse, Action.SPLIT: reuse // 2 // BLOCK * BLOCK}.get(action, 0)
    kept = reuse - pulled if action in (Action.RESIDENT, Action.ROUTE) else 0
    return Way(action, kept, pulled, tokens - kept - pulled, 1.0 + noise * abs(chance.normal()), reuse)


def _turned_away(number: int, arrival_us: int) -> Outcome:
    return Outcome(
        request_id=number, tenant_id=number % 3, application="chat", status=Status.REJECTED, reason="quota",
        arrival_us=arrival_us,
    )  # fmt: skip


def _served(number: int, work: Work, way: Way, queue_us: int, decide_us: int) -> Outcome:
    fetch, prefill, wobble = way.fetch_us, way.prefill_us, way.wobble
    overlap_us = min(fetch, prefill) // 2 if way.action is Action.SPLIT else 0
    route, reused = 10_000 if way.action is Action.ROUTE else 200, way.kept + way.pulled
    clean = route + queue_us + fetch + prefill - overlap_us + MERGE_US
    quoted = {"queue": queue_us, "fetch": fetch, "prefill": prefill, "overlap": overlap_us}
    return Outcome(
        request_id=number, tenant_id=number % 3, application="chat", status=Status.DONE, action=way.action,
        arrival_us=int(work.arrivals_us[number]), ttft_us=clean + decide_us,
        end_to_end_us=clean + decide_us + DECODE_US, route_us=route, queue_us=queue_us, fetch_us=fetch,
        prefill_us=prefill, overlap_us=overlap_us, merge_us=MERGE_US, decode_us=DECODE_US, decide_us=decide_us,
        quoted_ttft_us=int(clean / wobble),
        quoted_us=(
            ("route_us", route), *((f"{name}_us", int(us / wobble)) for name, us in quoted.items()),
            ("merge_us", MERGE_US),
        ),
        prompt_tokens=work.lengths[number], computed_tokens=way.computed,
        resident_tokens=way.kept if way.action is Action.RESIDENT else 0,
        routed_tokens=way.kept if way.action is Action.ROUTE else 0, pulled_tokens=way.pulled,
        same_tenant_tokens=reused - reused // 2, cross_tenant_tokens=reused // 2,
        pulled_bytes=way.pulled // BLOCK * BLOCK_BYTES,
        missed=((MissReason.UNKNOWN, way.computed - 1), (MissReason.LAST_TOKEN, 1)),
        output_tokens=work.answers[number], logit_fingerprint=(12.5, 11.0 + 1e-6 * way.dialled),
    )  # fmt: skip


def make_case(
    selector: str = "cheapest", *, overlap: float = 0.5, utilisation: float | None = None, seed: int = 1,
    count: int = 40, label: Label = Label.MEASURED, link: str = "loopback", rejected: int = 0, noise: float = 0.03,
    rate_per_s: float | None = None,
) -> CaseResult:  # fmt: skip
    """Deterministic by seed; the workload (lengths, arrivals, answers) does not depend on the selector."""
    work = _work(seed, overlap, count, utilisation, rate_per_s)
    chance = np.random.default_rng((seed, sum(selector.encode())))
    free_us, outcomes = 0.0, []
    for number, tokens in enumerate(work.lengths):
        way = _way(selector, tokens, overlap, noise, chance)
        arrival_us = int(work.arrivals_us[number])
        queue_us, decide_us = int(max(0.0, free_us - arrival_us)), int(150 + 50 * chance.random())
        row = _served(number, work, way, queue_us, decide_us)
        free_us = row.arrival_us + row.ttft_us - row.route_us - row.decide_us + DECODE_US
        outcomes.append(row if number < count - rejected else _turned_away(number, arrival_us))
    moved = sum(o.pulled_bytes for o in outcomes)
    return CaseResult(
        label=label, selector=selector, tenancy="layered", link=link, seed=seed, overlap=overlap,
        utilisation=utilisation, rate_per_s=work.rate_per_s, workload="synthetic", outcomes=tuple(outcomes),
        counters=Counters(
            wire_bytes=moved, planned_bytes=moved, block_bytes=BLOCK_BYTES, node_stored_blocks=(300, 260),
            node_unique_blocks=(300, 250), fleet_unique_blocks=400,
        ),
        expected_requests=count, fit_request_ids=(0, 1, 2, 3),
    )  # fmt: skip


SELECTORS = ("recompute_always", "least_loaded", "route_to_longest_prefix", "cheapest")


def make_study(count: int = 40, seeds: tuple[int, ...] = (1,)) -> list[CaseResult]:
    """What the demo runs: idle at three overlaps, loaded at 50 % with four selectors; on an emulated link too."""
    cases = []
    for seed in seeds:
        for label, link in ((Label.MEASURED, "loopback"), (Label.EMULATED, "1 Gbit/s, 10 ms")):
            for overlap in (0.3, 0.5, 0.8):
                for selector in ("recompute_always", "cheapest"):
                    cases.append(make_case(selector, overlap=overlap, seed=seed, count=count, label=label, link=link))
            for selector in SELECTORS:
                cases.append(make_case(selector, utilisation=0.7, seed=seed, count=count, label=label, link=link))
    return cases
