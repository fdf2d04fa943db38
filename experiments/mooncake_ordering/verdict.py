"""R6: the order of Mooncake's scheduling policies, from the results of the study; the worst of its seeds counts.

python -m experiments.mooncake_ordering.verdict outputs/mooncake_ordering/HASH/results.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from experiments.table import CONDITIONS, show
from kvshare_research.metrics.records import CaseResult, load_results
from kvshare_research.metrics.steady import steadiness


def block_of(case: CaseResult) -> str:
    """The study's block that the case belongs to."""
    return dict(case.extra)["block"]


def quantities(cases: Iterable[CaseResult]) -> dict[str, float]:
    """Ratios of mean TTFT, each the least over the seeds: an order holds if it holds with every one."""
    cases = list(cases)
    CONDITIONS.extend((f"{block_of(c)} {c.selector}, seed {c.seed}", steadiness(c.outcomes)) for c in cases)
    means = {(block_of(c), c.selector, c.seed): fmean(o.ttft_us for o in c.done()) for c in cases}
    seeds = sorted({seed for _, _, seed in means})
    steps = {
        "local cache over global cache": (("local", "mooncake"), ("ordering", "mooncake")),
        "load balance over local cache": (("ordering", "least_loaded"), ("local", "mooncake")),
        "random over load balance": (("ordering", "random"), ("ordering", "least_loaded")),
    }
    for (block, selector, seed), mean in sorted(means.items()):
        print(f"{block} {selector}, seed {seed}: mean TTFT {mean / 1e6:.2f} s", file=sys.stderr)
    return {
        f"mean TTFT, {name}": min(means[*slow, seed] / means[*quick, seed] for seed in seeds)
        for name, (slow, quick) in steps.items()
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m experiments.mooncake_ordering.verdict outputs/mooncake_ordering/<hash>/results.json")
    raise SystemExit(show(Path(__file__).parent, quantities(load_results(Path(sys.argv[1])).cases)))
