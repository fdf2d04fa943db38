"""R7: turning requests away before their prefill, by the decode load of now or by that to come (Mooncake)."""

from __future__ import annotations

import heapq
import random
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from math import log, sqrt
from pathlib import Path
from statistics import fmean, pstdev
from typing import Literal

from experiments.fleet import Prompt, play, setting
from experiments.table import show
from kvshare_research.core.costing import PrefillCoefficients, prefill_ps
from kvshare_research.core.nouns import Status
from kvshare_research.selector.rejection import EarlyRejection, decoding_at
from kvshare_research.study.settings import choice

Mode = Literal["none", "early", "predicted"]  # none: turned away only when the decode stage is reached
PREFILL = PrefillCoefficients(28_930_000_000, 186_000_000, 4_000_000, 2_550, 2_550)  # as conf/driver/simulator.yaml
INSTANCES = 8  # of each kind, as published
# Objectives as published; a decode step is assumed: 12 requests meet the objective, as many as are prefilled.
RULE = EarlyRejection(ttft_objective_us=30_000_000, tbt_objective_us=100_000, step_us=20_000, request_us=6_200)
MEDIAN_IN, MEAN_IN, MEAN_OUT = 6_909, 12_035, 343  # of Mooncake's conversation trace
MODES: tuple[Mode, ...] = ("none", "early", "predicted")
FLEET_REQUESTS, FLEET_RATE_PER_S = 3_000, 6.0
REQUESTS, RATE_PER_S, SMALL = 23_000, 3.4, 500  # the rate at which about as many are turned away as published


@dataclass
class Cluster:
    """Prefill instances with queues, decode instances with batches; `heap` holds (time, order, what, request)."""

    rule: EarlyRejection
    free_s: list[float] = field(default_factory=lambda: [0.0] * INSTANCES)  # when each prefill queue is empty
    prefilling: list[tuple[float, int]] = field(default_factory=list)  # (end, decode instance)
    decoding: list[list[float]] = field(default_factory=lambda: [[] for _ in range(INSTANCES)])  # when each began
    rejected: int = 0
    in_vain: int = 0
    loads: list[float] = field(default_factory=list)
    mean_decode_s: float = 10.0

    def target(self) -> int:
        """The decode instance with the fewest requests."""
        return min(range(INSTANCES), key=lambda i: (len(self.decoding[i]), i))

    def expected(self, at_s: float) -> float:
        """Requests per decode instance at a later time."""
        since, ends = (s for batch in self.decoding for s in batch), (end for end, _ in self.prefilling)
        return decoding_at(at_s, since, ends, self.mean_decode_s) / INSTANCES

    def admits(self, now_s: float, prefill_s: float) -> float | None:
        """When the prefill ends; None if the request is turned away on arrival."""
        at = min(range(INSTANCES), key=lambda i: (self.free_s[i], i))
        end_s = max(self.free_s[at], now_s) + prefill_s
        ttft_us, now = (end_s - now_s) * 1e6, len(self.decoding[self.target()]) + 1
        too_late = self.rule.prefill_load(ttft_us) > 1  # in all modes
        if too_late or self.rule.refusal(ttft_us, now, self.expected(end_s) + 1):
            return None
        self.free_s[at] = end_s
        return end_s


def modelled(mode: Mode, requests: int, seed: int = 1) -> Cluster:
    """The same arrivals under one mode."""
    rng, cluster = random.Random(f"rejection/{seed}"), Cluster(replace(RULE, mode=mode))
    sigma = sqrt(2 * log(MEAN_IN / MEDIAN_IN))
    heap: list[tuple[float, int, str, int]] = []
    now_s = 0.0
    for i in range(requests):
        now_s += rng.expovariate(RATE_PER_S)
        heapq.heappush(heap, (now_s, i, "arrive", min(131_072, int(MEDIAN_IN * rng.lognormvariate(0, sigma))) + 1))
    outputs = [1 + int(rng.expovariate(1 / MEAN_OUT)) for _ in range(requests)]
    while heap:
        now_s, i, what, value = heapq.heappop(heap)
        if what == "arrive":
            cluster.loads.append(RULE.decode_load(fmean(map(len, cluster.decoding))))
            end_s = cluster.admits(now_s, prefill_ps(PREFILL, value, 0) / 1e12)
            if end_s is None:
                cluster.rejected += 1
            else:
                cluster.prefilling.append((end_s, i))
                heapq.heappush(heap, (end_s, i, "prefilled", 0))
        elif what == "prefilled":
            cluster.prefilling.remove((now_s, i))
            at = cluster.target()
            if RULE.decode_load(len(cluster.decoding[at]) + 1) > 1:
                cluster.rejected += 1
                cluster.in_vain += 1
                continue
            took_s = outputs[i] * RULE.decode_load(len(cluster.decoding[at]) + 1) * RULE.tbt_objective_us / 1e6
            cluster.mean_decode_s += 0.02 * (took_s - cluster.mean_decode_s)
            cluster.decoding[at].append(now_s)
            heapq.heappush(heap, (now_s + took_s, i, "decoded", at))
        else:
            cluster.decoding[value].pop(0)
    return cluster


def overload(count: int, seed: int = 1) -> list[Prompt]:
    """Prompts as above, none of them too long to be served in time alone, faster than eight nodes can serve them."""
    rng, sigma, now_s, made = random.Random(f"overload/{seed}"), sqrt(2 * log(MEAN_IN / MEDIAN_IN)), 0.0, []
    for i in range(count):
        now_s += rng.expovariate(FLEET_RATE_PER_S)
        tokens = min(32_768, int(MEDIAN_IN * rng.lognormvariate(0, sigma))) + 1
        prompt = Prompt(
            arrival_us=int(now_s * 1e6), blocks=range(100 * i, 100 * i + 65), input_tokens=tokens,
            output_tokens=1 + int(rng.expovariate(1 / MEAN_OUT)), ingress=rng.randrange(INSTANCES),
        )  # fmt: skip
        made.append(prompt)
    return made


def in_fleet(requests: int) -> dict[str, float]:
    """The very rule as a policy: `selector=mooncake` where every node prefills, and may decode 64 requests."""
    setup = setting(f"driver.node_count={INSTANCES}", "driver.block_tokens=512", "link=rdma_400g")
    prompts, selector = overload(requests), choice("selector", "mooncake_early")
    in_time: dict[Mode, int] = {}
    lost = 0
    for mode in MODES:
        rule = selector["rejection"] | asdict(replace(RULE, mode=mode, request_us=1_250))
        outcomes, simulator = play(setup, prompts, selector | {"rejection": rule})
        served = [o for o in outcomes if o.status == Status.DONE]
        in_time[mode] = sum(o.ttft_us <= RULE.ttft_objective_us for o in served)
        lost += simulator.injected - len(outcomes) + simulator.router.in_flight
        reasons = dict(Counter(o.reason for o in outcomes if o.status == Status.REJECTED))
        told = f"{len(served)} of {simulator.injected} served, {in_time[mode]} in time; {reasons}"
        print(f"fleet, {mode}: {told}", file=sys.stderr)
    return {
        "fleet: answered in time, early over none": in_time["early"] / max(1, in_time["none"]),
        "fleet: answered in time, prediction over early": in_time["predicted"] / max(1, in_time["early"]),
        "fleet: neither answered nor rejected": float(lost),
    }


def run(requests_max: int | None = None) -> dict[str, float]:
    """The three modes on the same arrivals."""
    requests = min(REQUESTS, requests_max or REQUESTS)
    found = {mode: modelled(mode, requests) for mode in MODES}
    swing = {mode: pstdev(c.loads[len(c.loads) // 10 :]) for mode, c in found.items()}
    for mode, cluster in found.items():
        print(f"{mode}: {cluster.rejected} rejected, {cluster.in_vain} of them after their prefill, decode load "
              f"{fmean(cluster.loads):.2f} with deviation {swing[mode]:.3f}", file=sys.stderr)  # fmt: skip
    baseline, early, predictive = (found[mode] for mode in MODES)
    return {
        "rejected early over baseline": early.rejected / max(1, baseline.rejected),
        "rejected by prediction over early": predictive.rejected / max(1, early.rejected),
        "prefills in vain, baseline, share of requests": baseline.in_vain / requests,
        "prefills in vain by prediction over baseline": predictive.in_vain / max(1, baseline.in_vain),
        "swing of the decode load, prediction over early": swing["predicted"] / swing["early"],
    } | in_fleet(min(FLEET_REQUESTS, requests_max or FLEET_REQUESTS))


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
