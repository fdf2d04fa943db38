"""Every retention policy beside the oracle, on a small generated mix; for traces run the package itself.

The mix: conversations that grow turn by turn over a few system prompts, and single prompts that never come back.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.one_node import Arrivals, Node, asked, hit_ratio, policy, tenants
from experiments.table import show
from kvshare_research.core.ports import ATTENTION

POLICIES = (
    *("belady", "look_ahead", "gdsf", "lfu", "lrfu", "s3fifo", "ttl", "prefixshield", "fair_floors", "lru", "fifo"),
)  # h2o is not here: a modelled engine has no attention
BLOCK_TOKENS = 16
TENANTS = tenants(3)


def mix(requests: int, seed: int) -> Arrivals:
    """Tenants 1 and 2 converse: Zipf-popular dialogues over 4 system prompts each; tenant 3 scans."""
    draw = np.random.default_rng(seed)

    def text(blocks: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        return draw.integers(0, 50_000, blocks * BLOCK_TOKENS, dtype=np.uint32)

    systems = {tenant: [text(6) for _ in range(4)] for tenant in (1, 2)}
    dialogues: dict[tuple[int, int], np.ndarray[tuple[int], np.dtype[np.uint32]]] = {}
    rows = []
    at_us = 0.0
    for number in range(requests):
        at_us += draw.exponential(25_000)
        tenant = int(draw.choice([1, 2, 3], p=[0.4, 0.3, 0.3]))
        if tenant == 3:
            tokens = text(8)
        else:
            name = tenant, min(int(draw.zipf(1.3)), 40)
            if name not in dialogues or len(dialogues[name]) > 24 * BLOCK_TOKENS:
                dialogues[name] = systems[tenant][name[1] % 4]
            dialogues[name] = tokens = np.concatenate([dialogues[name], text(2)])
        rows.append(asked(number, tenant, tokens, int(at_us), TENANTS, BLOCK_TOKENS))
    return rows


def run() -> dict[str, float]:
    """Hit ratios in one pool, of 500 requests; the node is overloaded, so that there is a queue to look at."""
    arrivals = mix(500, 0)
    ours = {}
    for name in POLICIES:
        assert ATTENTION not in policy(name).needs
        node = Node(
            directory=TENANTS, capacity_blocks=160, block_tokens=BLOCK_TOKENS, us_per_token=350, retention=policy(name)
        )
        ours[f"hit ratio, {name}"] = hit_ratio(node.play(arrivals).values())
    ours["most above the oracle"] = max(v - ours["hit ratio, belady"] for v in ours.values())
    return ours


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
