"""R10: a scanner floods a pool of 511 blocks; what is left of a victim's hot set of 384, by retention policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.one_node import Arrivals, Node, asked, hit_ratio, policy, tenants
from experiments.table import show
from kvshare_research.core.nouns import AccountSpec
from kvshare_research.core.ports import Retention
from kvshare_research.retention.prefixshield import PrefixShieldRetention

BLOCK_TOKENS, CAPACITY, HOT_BLOCKS, PROMPT_BLOCKS = 16, 511, 384, 16
VICTIM, SCANNER = 1, 2
TENANTS = tenants(2)
SHIELD = PrefixShieldRetention(refill_blocks_per_s=80, burst_blocks=HOT_BLOCKS)  # twice what the victim stores, cold


def flood(requests: int, victim_share: float, seed: int) -> Arrivals:
    """The victim asks for one of its hot prompts at random, the scanner for one that was never seen."""
    draw = np.random.default_rng(seed)

    def text() -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        return draw.integers(0, 50_000, PROMPT_BLOCKS * BLOCK_TOKENS + 1, dtype=np.uint32)

    hot = [text() for _ in range(HOT_BLOCKS // PROMPT_BLOCKS)]
    rows, at_us = [], 0.0
    for number in range(requests):
        at_us += draw.exponential(50_000)
        victim = draw.random() < victim_share
        tokens = hot[int(draw.integers(len(hot)))] if victim else text()
        rows.append(asked(number, VICTIM if victim else SCANNER, tokens, int(at_us), TENANTS, BLOCK_TOKENS))
    return rows


def victim_hits(arrivals: Arrivals, retention: Retention) -> float:
    node = Node(
        directory=TENANTS, capacity_blocks=CAPACITY, block_tokens=BLOCK_TOKENS, us_per_token=20, retention=retention
    )
    outcomes = node.play(arrivals).values()
    return hit_ratio(o for o in outcomes if o.tenant_id == VICTIM)


def borrowed(limit_blocks: int, retention: Retention) -> int:
    """Blocks that the scanner holds in the end, while the victim is idle."""
    specs = tuple(AccountSpec(scope_id=i, reserved_blocks=0, limit_blocks=limit_blocks) for i in range(3))
    node = Node(
        directory=TENANTS, capacity_blocks=CAPACITY, block_tokens=BLOCK_TOKENS, us_per_token=20, retention=retention,
        accounts=specs,
    )  # fmt: skip
    sim = node.simulator()
    sim.feed(iter(flood(60, 0.0, 1)))
    sim.run()
    return sim.workers[0].ledger.accounts[SCANNER].used


def run() -> dict[str, float]:
    """Victim hits under a flood of three scans per request of the victim, and what may be borrowed of an idle pool."""
    arrivals = flood(600, 0.15, 0)
    ours = {
        f"victim hit %, {name}": 100 * victim_hits(arrivals, policy(name)) for name in ("lru", "s3fifo", "fair_floors")
    }
    ours["victim hit %, prefixshield"] = 100 * victim_hits(arrivals, SHIELD)
    poor = replace(SHIELD, refill_blocks_per_s=8.0, burst_blocks=PROMPT_BLOCKS)
    ours["victim hit %, prefixshield with a tenth of the refill"] = 100 * victim_hits(arrivals, poor)
    ours["prefixshield over lru"] = ours["victim hit %, prefixshield"] / max(0.1, ours["victim hit %, lru"])
    ours["blocks borrowed of 511, prefixshield"] = borrowed(CAPACITY, SHIELD)
    ours["blocks borrowed of 511, static quota"] = borrowed(CAPACITY // 2, policy("lru"))
    return ours


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
