"""Cases of the real classes, by a small seeded queue: one worker, prefill and fetches that cost."""

from __future__ import annotations

import numpy as np

from kvshare_research.core.nouns import Action, MissReason, Outcome, Status
from kvshare_research.metrics.records import CaseResult, Counters, Label

BLOCK = 16
BLOCK_BYTES = 16 * 22_500


def prefill_us(new: int, cached: int) -> float:
    return 3000.0 + 900.0 * new + 0.05 * new * cached + 0.025 * new * new


def _ways(selector: str, rng: np.random.Generator) -> Action:
    if selector == "recompute_always":
        return Action.RECOMPUTE
    if selector == "least_loaded":
        return (Action.RECOMPUTE, Action.RESIDENT)[int(rng.random() < 0.5)]
    return (Action.RESIDENT, Action.ROUTE, Action.PULL, Action.SPLIT)[int(rng.integers(4))]


def make_case(
    selector: str = "cheapest",
    *,
    overlap: float = 0.5,
    utilisation: float | None = None,
    seed: int = 1,
    count: int = 40,
    label: Label = Label.MEASURED,
    link: str = "loopback",
    rejected: int = 0,
    noise: float = 0.03,
    rate_per_s: float | None = None,
) -> CaseResult:
    """Deterministic by seed; the workload (lengths, arrivals, answers) does not depend on the selector."""
    work = np.random.default_rng((seed, round(100 * overlap)))
    lengths = work.integers(20, 30, size=count) * BLOCK + work.integers(1, BLOCK, size=count)
    gaps = work.exponential(1.0, size=count)
    answers = work.integers(0, 49152, size=(count, 4))
    service = float(np.mean([prefill_us(int(n), 0) for n in lengths]))
    if rate_per_s is None and utilisation is not None:
        rate_per_s = utilisation * 1e6 / service
    arrivals = np.cumsum(gaps) * 1e6 / rate_per_s if rate_per_s else np.arange(count) * 10 * service
    chance = np.random.default_rng((seed, sum(selector.encode())))
    free, outcomes = 0.0, []
    for i, n in enumerate(int(x) for x in lengths):
        action = _ways(selector, chance)
        reuse = 0 if action is Action.RECOMPUTE else int(n * overlap) // BLOCK * BLOCK
        pulled = {Action.PULL: reuse, Action.SPLIT: reuse // 2 // BLOCK * BLOCK}.get(action, 0)
        kept = reuse - pulled if action in (Action.RESIDENT, Action.ROUTE) else 0
        computed = n - kept - pulled
        wobble = 1.0 + noise * abs(chance.normal())
        prefill = int(prefill_us(computed, n - computed) * wobble)
        fetch = int((10_000 + pulled / BLOCK * BLOCK_BYTES / 125) * wobble) if pulled else 0
        overlap_us = min(fetch, prefill) // 2 if action is Action.SPLIT else 0
        route = 10_000 if action is Action.ROUTE else 200
        arrival = int(arrivals[i])
        queue = int(max(0.0, free - arrival))
        own = fetch + prefill - overlap_us + 300
        free = arrival + queue + own + 40_000
        decide = int(150 + 50 * chance.random())
        ttft = route + queue + own + decide
        cross = (kept + pulled) // 2
        if i >= count - rejected:
            outcomes.append(
                Outcome(
                    request_id=i,
                    tenant_id=i % 3,
                    application="chat",
                    status=Status.REJECTED,
                    reason="quota",
                    arrival_us=arrival,
                )
            )
            continue
        clean = route + queue + own
        outcomes.append(
            Outcome(
                request_id=i,
                tenant_id=i % 3,
                application="chat",
                status=Status.DONE,
                action=action,
                arrival_us=arrival,
                ttft_us=ttft,
                end_to_end_us=ttft + 40_000,
                route_us=route,
                queue_us=queue,
                fetch_us=fetch,
                prefill_us=prefill,
                overlap_us=overlap_us,
                merge_us=300,
                decode_us=40_000,
                decide_us=decide,
                quoted_ttft_us=int(clean / wobble),
                quoted_us=(
                    ("route_us", route),
                    ("queue_us", int(queue / wobble)),
                    ("fetch_us", int(fetch / wobble)),
                    ("prefill_us", int(prefill / wobble)),
                    ("overlap_us", int(overlap_us / wobble)),
                    ("merge_us", 300),
                ),
                prompt_tokens=n,
                computed_tokens=computed,
                resident_tokens=kept if action is Action.RESIDENT else 0,
                routed_tokens=kept if action is Action.ROUTE else 0,
                pulled_tokens=pulled,
                same_tenant_tokens=kept + pulled - cross,
                cross_tenant_tokens=cross,
                pulled_bytes=pulled // BLOCK * BLOCK_BYTES,
                missed=((MissReason.UNKNOWN, computed - 1), (MissReason.LAST_TOKEN, 1)),
                output_tokens=tuple(int(t) for t in answers[i]),
                logit_fingerprint=(12.5, 11.0 + 1e-6 * reuse),
            )
        )
    moved = sum(o.pulled_bytes for o in outcomes)
    return CaseResult(
        label=label,
        selector=selector,
        tenancy="layered",
        link=link,
        seed=seed,
        overlap=overlap,
        utilisation=utilisation,
        rate_per_s=None if rate_per_s is None else float(rate_per_s),
        workload="synthetic",
        outcomes=tuple(outcomes),
        counters=Counters(
            wire_bytes=moved,
            planned_bytes=moved,
            block_bytes=BLOCK_BYTES,
            node_stored_blocks=(300, 260),
            node_unique_blocks=(300, 250),
            fleet_unique_blocks=400,
        ),
        expected_requests=count,
        fit_request_ids=(0, 1, 2, 3),
    )


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
