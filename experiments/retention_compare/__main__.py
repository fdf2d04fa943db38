"""Hit ratio against capacity on public traces, below `KVSHARE_DATA`; writes a table and a plot to the folder given."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from omegaconf import OmegaConf

from experiments.one_node import RING, ROOT, Node, hit_ratio, policy
from kvshare_research.core.errors import KvShareError
from kvshare_research.core.nouns import Chain, Request, Status
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.namespace import ModelSpace, chain
from kvshare_research.workload.base import WorkloadInput
from kvshare_research.workload.mooncake import MooncakeTrace
from kvshare_research.workload.parties import load_parties
from kvshare_research.workload.ragpulse import RagPulseTrace
from kvshare_research.workload.trace import Reading

from .run import POLICIES

# (block, us of engine time per token: busy, and not overloaded on one node; capacities in blocks)
TRACES: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "mooncake": (512, 20, (750, 2_000, 6_000, 20_000)),
    "ragpulse": (128, 20_000, (100, 200, 400, 1_600)),
}


def arrivals(
    name: str, block_tokens: int, data_root: str, count: int | None
) -> tuple[Any, list[tuple[Request, Chain]]]:
    """The directory and the requests of a trace, in one tenancy for all; a single token of output each."""
    given = OmegaConf.to_container(OmegaConf.load(ROOT / "conf/tenants/one.yaml"))
    base, catalogue = load_parties(given, "conf/tenants")  # type: ignore[arg-type]
    tenancy = Layered()
    directory = tenancy.directory(base)
    kind = {"mooncake": MooncakeTrace, "ragpulse": RagPulseTrace}[name]
    workload = kind(data_root=data_root, request_count=count)  # type: ignore[operator]
    nothing: Any = None  # a trace names its content
    seen = WorkloadInput(
        tokenizer=nothing, directory=base, catalogue=catalogue, seed=0, block_tokens=block_tokens, node_count=1,
        pool_blocks=1,
    )  # fmt: skip
    space = ModelSpace(model="simulated", dtype="none", block_tokens=block_tokens)

    def rows() -> Iterator[tuple[Request, Chain]]:
        for number, item in enumerate(workload.stream(seen, Reading())):
            asked = item.request
            ids = tenancy.scopes(asked.tenant_id, asked.segments, directory, asked.arrival_us, asked.user_id)
            segments = tuple(replace(s, scope_id=i) for s, i in zip(asked.segments, ids, strict=True))
            request = replace(asked, segments=segments, request_id=number, output_tokens_max=1, ingress=0)
            yield request, chain(item.tokens, segments, ids, directory=directory, ring=RING, space=space)

    return directory, list(rows())


def main() -> int:
    """Exit code 1 if any policy beats the oracle by more than a tenth of a point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("outputs/retention_compare"))
    parser.add_argument("--traces", nargs="+", default=list(TRACES), choices=list(TRACES))
    parser.add_argument("--requests", type=int, default=3_000, help="of each trace, from its start; 0: all")
    options = parser.parse_args()
    root = os.environ.get("KVSHARE_DATA")
    if root is None:
        print("error: set KVSHARE_DATA to the folder that holds mooncake/ and ragpulse/", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in options.traces:
        block_tokens, us_per_token, capacities = TRACES[name]
        directory, asked = arrivals(name, block_tokens, root, options.requests or None)
        print(
            f"\n{name}: {len(asked)} requests, tokens reused of tokens asked, by capacity in blocks of {block_tokens}"
        )
        print(
            "| policy | " + " | ".join(f"{c:,}" for c in capacities) + " | s |\n|---|" + "---|" * (len(capacities) + 1)
        )
        served: dict[int, int] = {}
        for which in POLICIES:
            since, line = time.process_time(), []
            for capacity in capacities:
                node = Node(
                    directory=directory, capacity_blocks=capacity, block_tokens=block_tokens,
                    us_per_token=us_per_token, retention=policy(which),
                )  # fmt: skip
                outcomes = node.play(asked).values()
                served[capacity] = sum(o.status == Status.DONE for o in outcomes)
                line.append(hit_ratio(outcomes))
                rows.append({"trace": name, "policy": which, "capacity_blocks": capacity, "hit_ratio": line[-1]})
            spent_s = time.process_time() - since
            print(f"| {which} | " + " | ".join(f"{x:.2%}" for x in line) + f" | {spent_s:.0f} |", flush=True)
        print("served: " + ", ".join(f"{count} at {capacity:,}" for capacity, count in served.items()))
        (options.out / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
        plot(rows, name, options.out / f"{name}.png")
    best = {(r["trace"], r["capacity_blocks"]): r["hit_ratio"] for r in rows if r["policy"] == "belady"}
    return int(any(r["hit_ratio"] > best[r["trace"], r["capacity_blocks"]] + 0.001 for r in rows))


def plot(rows: list[dict[str, Any]], trace: str, path: Path) -> None:
    """Hit ratio against capacity, a line per policy."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4))
    for which in POLICIES:
        mine = [r for r in rows if (r["trace"], r["policy"]) == (trace, which)]
        style = "k--" if which == "belady" else "-o"
        axes.plot([r["capacity_blocks"] for r in mine], [r["hit_ratio"] for r in mine], style, ms=3, lw=1, label=which)
    axes.set(
        xscale="log", xlabel="capacity, blocks", ylabel="tokens reused of tokens asked", title=f"{trace} [simulated]"
    )
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KvShareError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
