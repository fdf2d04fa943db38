"""R11: the service gap of two backlogged tenants is bounded (VTC), and locality can be had within it (DLPM)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.one_node import Arrivals, Node, asked, hit_ratio, policy, tenants
from experiments.table import show
from kvshare_research.core.nouns import Outcome
from kvshare_research.core.ports import Schedule
from kvshare_research.schedule.dlpm import DlpmSchedule
from kvshare_research.schedule.fcfs import FcfsSchedule
from kvshare_research.schedule.vtc import VtcSchedule

BLOCK_TOKENS, PREFIXES, PREFIX_BLOCKS = 16, 6, 24
TENANTS = tenants(2)
L_IN = (PREFIX_BLOCKS + 8) * BLOCK_TOKENS  # the longest prompt
QUANTUM = 8 * L_IN
END_US = 20_000_000


def load(rates_per_s: tuple[float, float], on_off: bool, seed: int) -> Arrivals:
    """Both ask for more than the node can serve; with `on_off` the first tenant only in every other second.

    Each prompt begins with one of the tenant's own prefixes and ends with text of its own.
    """
    draw = np.random.default_rng(seed)
    moments = []
    for tenant, rate in enumerate(rates_per_s, 1):
        at_us = 0.0
        while (at_us := at_us + draw.exponential(1e6 / rate)) < END_US:
            if not (on_off and tenant == 1 and int(at_us / 1e6) % 2):
                moments.append((at_us, tenant))
    texts = draw.integers(0, 50_000, (3, PREFIXES, PREFIX_BLOCKS * BLOCK_TOKENS), dtype=np.uint32)
    rows = []
    for number, (at_us, tenant) in enumerate(sorted(moments)):
        tail = draw.integers(0, 50_000, int(draw.integers(1, 8 * BLOCK_TOKENS)), dtype=np.uint32)
        tokens = np.concatenate([texts[tenant, int(draw.integers(PREFIXES))], tail])
        rows.append(asked(number, tenant, tokens, int(at_us), TENANTS, BLOCK_TOKENS))
    return rows


def play(arrivals: Arrivals, schedule: Schedule) -> list[Outcome]:
    """What was answered before the arrivals ended, in that order. The pool holds a third of the prefixes."""
    node = Node(
        directory=TENANTS, capacity_blocks=128, block_tokens=BLOCK_TOKENS, us_per_token=100, retention=policy("lru"),
        schedule=schedule, admitted_max=1,
    )  # fmt: skip
    outcomes = node.play(arrivals, END_US).values()
    return sorted(outcomes, key=lambda o: (o.arrival_us + o.end_to_end_us, o.request_id))


def gap_tokens(arrivals: Arrivals, outcomes: list[Outcome]) -> int:
    """The most that one tenant was served more than the other within any stretch in which both always waited."""
    lead = low = high = worst = 0
    waiting = {1: 0, 2: 0}
    events = [(r.arrival_us, 0, r.tenant_id, 0) for r, _ in arrivals]
    events += [(o.arrival_us + o.end_to_end_us, 1, o.tenant_id, o.prompt_tokens + 2) for o in outcomes]
    for _, ends, tenant, tokens in sorted(events):
        waiting[tenant] += -1 if ends else 1
        lead += tokens if tenant == 1 else -tokens
        if min(waiting.values()) < 2:  # one of them may be at work: nothing waits
            low = high = lead
        low, high = min(low, lead), max(high, lead)
        worst = max(worst, high - low)
    return worst


def run() -> dict[str, float]:
    """Gaps in units of the bound 2 max(w_in L_in, w_out M); hits of DLPM over those of VTC."""
    bound = 2 * L_IN  # one prompt at a time: M is two tokens
    steady, on_off = load((60.0, 30.0), False, 0), load((120.0, 30.0), True, 1)
    schedules = {"fcfs": FcfsSchedule(), "vtc": VtcSchedule(), "dlpm": DlpmSchedule(quantum_tokens=QUANTUM)}
    done = {name: play(steady, schedule) for name, schedule in schedules.items()}
    ours = {f"gap over bound, overload, {name}": gap_tokens(steady, rows) / bound for name, rows in done.items()}
    ours["gap over bound, on-off, vtc"] = gap_tokens(on_off, play(on_off, VtcSchedule())) / bound
    ours["gap over bound, on-off, fcfs"] = gap_tokens(on_off, play(on_off, FcfsSchedule())) / bound
    ours["hit ratio, vtc"], ours["hit ratio, dlpm"] = hit_ratio(done["vtc"]), hit_ratio(done["dlpm"])
    served = {name: sum(o.prompt_tokens for o in rows) for name, rows in done.items()}
    ours["throughput, dlpm over vtc"] = served["dlpm"] / served["vtc"]
    ours["gap over 2 (quantum + L_in), dlpm"] = gap_tokens(steady, done["dlpm"]) / (2 * (QUANTUM + L_IN))
    return ours


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
