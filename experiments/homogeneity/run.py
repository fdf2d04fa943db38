"""How alike prompts must be for sharing across tenants to pay, and what it costs where they are not alike at all."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.fleet import Prompt, counted, play, reuse, setting
from experiments.table import show

REQUESTS, SMALL = 1_500, 150
NODES, TENANTS, BLOCK_TOKENS = 4, 8, 64
TEMPLATE_BLOCKS, OWN_BLOCKS = 24, 8
FLEET = (f"driver.node_count={NODES}", f"driver.block_tokens={BLOCK_TOKENS}", "link=rdma_400g",
         "driver.pool_tokens=262144", "limits.guess_us=0")  # fmt: skip
PARTIES: dict[str, Any] = {
    "priorities": {"standard": 0}, "public": {}, "groups": [],
    "tenants": [{"name": f"tenant{i}", "users": 1} for i in range(TENANTS)],
    "applications": [{"name": "trace", "system": "public", "few_shot": "public", "user": "tenant"}],
}  # fmt: skip


def prompts(
    count: int, templates: int, *, zipf: float = 0.0, edit: str = "none", tenants_each: int = TENANTS, share: bool
) -> list[Prompt]:
    """Equal prompts whether shared or not: a template, a block of each tenant's own in it if edited, and a question."""
    rng = random.Random(f"homogeneity/{templates}/{zipf}")
    weights = [(rank + 1) ** -zipf for rank in range(templates)]
    chosen = rng.choices(range(templates), weights, k=count)
    made, now_s = [], 0.0
    for i, template in enumerate(chosen):
        now_s += rng.expovariate(4.0)
        tenant = 1 + (template + rng.randrange(tenants_each)) % TENANTS
        blocks = [template * 1_000 + b for b in range(TEMPLATE_BLOCKS)]
        public = TEMPLATE_BLOCKS
        if edit != "none":
            public = 0 if edit == "early" else TEMPLATE_BLOCKS - 2
            blocks[public] = 10**9 + template * 1_000 + tenant
        blocks += [2 * 10**9 + i * OWN_BLOCKS + b for b in range(OWN_BLOCKS)]
        made.append(
            Prompt(arrival_us=int(now_s * 1e6), blocks=blocks, input_tokens=len(blocks) * BLOCK_TOKENS,
                   output_tokens=16, tenant=tenant, public_blocks=public if share else 0, ingress=rng.randrange(NODES))
        )  # fmt: skip
    return made


def gain(count: int, templates: int, **how: Any) -> tuple[float, float]:
    """(isolated over shared mean TTFT, index entries per block of all prompts when shared)."""
    run_of, means, entries = setting(*FLEET), {}, 0.0
    for share in (False, True):
        given = prompts(count, templates, share=share, **how)
        outcomes, simulator = play(run_of, given, "cheapest", tenants=PARTIES)
        means[share] = fmean(o.ttft_us for o in counted(outcomes))
        entries = simulator.router.replica.store.entry_count() / sum(len(p.blocks) for p in given)
        told = f"mean TTFT {means[share] / 1e3:.0f} ms, reuse {reuse(counted(outcomes)):.3f}, {entries:.2f} entries"
        print(f"{templates} templates {how} {'shared' if share else 'isolated'}: {told}", file=sys.stderr)
    return means[False] / means[True], entries


def run(requests_max: int | None = None) -> dict[str, float]:
    """Gains; above 1, sharing is quicker."""
    count = min(REQUESTS, requests_max or REQUESTS)
    even = gain(count, 100)[0]
    diverse, entries = gain(count, 100_000)
    return {
        "gain of sharing, 1 template": gain(count, 1)[0],
        "gain of sharing, 100 templates": even,
        "gain of sharing, 10,000 templates": gain(count, 10_000)[0],
        "gain at 100 templates, Zipf 1.2 over even": gain(count, 100, zipf=1.2)[0] / even,
        "gain at 100 templates, edited early": gain(count, 100, edit="early")[0],
        "gain at 100 templates, edited late": gain(count, 100, edit="late")[0],
        "gain at 100 templates, one tenant each": gain(count, 100, tenants_each=1)[0],
        "fully diverse: mean TTFT of sharing over isolated": 1 / diverse,
        "fully diverse: index entries per prompt block": entries,
    }


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
