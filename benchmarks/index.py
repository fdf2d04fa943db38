"""Our indexes beside every peer that can be imported: same fleet, same queries, answers compared, one process.

    python -m benchmarks.index blocks=2000000 nodes=64 rounds=5 out=outputs/benchmarks/index

NVIDIA Dynamo is used if `ai-dynamo-runtime` can be imported (extra `peers`). Rounds are interleaved, so that other
load on the machine meets all contenders alike; p50 is the median of the rounds with the smallest and largest, p99 is
of the quietest round. Every round asks all queries twice: `cold` is the median of the first pass, after the others had
the caches; the rest is of the second.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import index_state, settings
from .index_contenders import (
    Contender,
    DynamoSelection,
    DynamoTree,
    Flat,
    FlatFromInts,
    FlatFromList,
    FlatMatch,
    Plain,
    Reference,
)
from .index_peers import LmcacheDirectory, SglangTrees, VllmPools


@dataclass
class Settings:
    """What is measured; give any as `name=value` on the command line."""

    blocks: int = 200_000
    nodes: int = 64
    lengths: list[int] = field(default_factory=lambda: [16, 128, 1024, 8192])
    queries: int = 300
    rounds: int = 5
    seed: int = 1
    contenders: list[str] = field(default_factory=lambda: ["flat", "dynamo", "plain"])
    out: str = "outputs/benchmarks/index"


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def timed_us(call: Callable[[Any], Any], inputs: list[Any]) -> list[float]:
    """Microseconds of each call."""
    clock, spent = time.perf_counter_ns, []
    for given in inputs:
        start = clock()
        call(given)
        spent.append((clock() - start) / 1000)
    return spent


def spent_s(contender: Contender, call: Callable[[Any], None], events: list[Any]) -> float:
    """Seconds of processor time, of all threads, until all events are applied: other load does not count."""
    start = time.process_time()
    for event in events:
        call(event)
    contender.finish()
    return time.process_time() - start


def filled(contender: Contender, state: index_state.State) -> dict[str, Any]:
    """The contender holds the state; what it took. Removes and stores again a tenth, to time removal."""
    stored = contender.events(state, state.stored, False)
    removed, again = contender.events(state, state.removed, True), contender.events(state, state.removed, False)
    gc.collect()
    before = rss_bytes()
    store_s = spent_s(contender, contender.store, stored)
    grown = rss_bytes() - before
    remove_s = spent_s(contender, contender.remove, removed)
    spent_s(contender, contender.store, again)
    size = contender.size_bytes()
    return {
        "store_blocks_per_s": state.copy_count / store_s,
        "remove_blocks_per_s": sum(e.end - e.start for e in state.removed) / remove_s if removed else None,
        "bytes_per_block": (size if size is not None else grown) / state.block_count,
        "bytes_from": "tables" if size is not None else "resident set",
    }


def wrong_answers(contender: Contender, queries: list[index_state.Query]) -> int:
    """Queries whose answer differs from the truth on any node."""
    wrong = 0
    for query in queries:
        answer = contender.depths(contender.lookup(contender.query(query)), query)
        wrong += not np.array_equal(answer, query.depths)
    return wrong


def summary(rounds: list[list[float]]) -> dict[str, float]:
    p50, p99 = ([float(np.percentile(r, q)) for r in rounds] for q in (50, 99))
    return {"p50_us": float(np.median(p50)), "p50_us_min": min(p50), "p50_us_max": max(p50), "p99_us": min(p99)}


def batched_us(flat: Flat, queries: list[index_state.Query], rounds: int) -> dict[str, float]:
    """Per query, when many are asked in one call."""
    keys = np.concatenate([q.keys for q in queries])
    offsets = np.cumsum([0, *(len(q.keys) for q in queries)])
    depths = np.empty((len(queries), flat.index.column_count), np.int32)
    spent = []
    for _ in range(4 * rounds):
        start = time.perf_counter_ns()
        flat.index.match_many_keys(keys, offsets, depths)
        spent.append((time.perf_counter_ns() - start) / 1000 / len(queries))
    return {
        "p50_us": float(np.median(spent)),
        "p50_us_min": min(spent),
        "p50_us_max": max(spent),
        "p99_us": max(spent),
        "cold_p50_us": spent[0],
    }


def contenders_of(given: Settings, state: index_state.State) -> tuple[list[Contender], list[Contender]]:
    """(those that must be filled, views that share an index with one of them)."""
    makers: dict[str, Callable[[index_state.State], Any]] = {
        "flat": Flat, "plain": Plain, "reference": Reference, "dynamo": DynamoTree, "dynamo_select": DynamoSelection,
        "vllm": VllmPools, "sglang": SglangTrees, "lmcache": LmcacheDirectory,
    }  # fmt: skip
    unknown = set(given.contenders) - set(makers)
    if unknown:
        raise SystemExit(f"contenders: `{sorted(unknown)[0]}` is none of {sorted(makers)}")
    filled_, views = [], []
    for name in given.contenders:
        try:
            contender = makers[name](state)
        except ImportError as missing:
            print(f"{name}: left out, {missing}", file=sys.stderr)
            continue
        filled_.append(contender)
        if isinstance(contender, Flat) and name == "flat":
            views += [FlatFromList(state, contender.index), FlatFromInts(state, contender.index)]
            views += [FlatMatch(state, contender.index)]
    return filled_, views


def measured(given: Settings) -> dict[str, Any]:
    """Everything, as it goes into the JSON file."""
    state = index_state.made(given.blocks, given.nodes, list(given.lengths), given.queries, given.seed)
    print(f"{state.block_count} blocks, {state.copy_count} copies on {given.nodes} nodes, {len(state.stored)} events")
    full, views = contenders_of(given, state)
    changes = {c.name: filled(c, state) for c in full}
    lookups: dict[str, dict[int, dict[str, float]]] = {c.name: {} for c in [*full, *views]}
    wrong: dict[str, int] = {}
    for length, queries in state.queries.items():
        runs: dict[str, list[list[float]]] = {c.name: [] for c in [*full, *views]}
        inputs = {c.name: [c.query(q) for q in queries] for c in [*full, *views]}
        for c in [*full, *views]:
            if not isinstance(c, DynamoSelection):
                wrong[c.name] = wrong.get(c.name, 0) + wrong_answers(c, queries)
            timed_us(c.lookup, inputs[c.name][:20])
        cold: dict[str, list[float]] = {c.name: [] for c in [*full, *views]}
        for _ in range(given.rounds):
            for c in [*full, *views]:
                cold[c.name] += timed_us(c.lookup, inputs[c.name])  # the others have just had the caches
                runs[c.name].append(timed_us(c.lookup, inputs[c.name]))
        for name, rounds in runs.items():
            lookups[name][length] = {**summary(rounds), "cold_p50_us": float(np.median(cold[name]))}
        for c in full:
            if isinstance(c, Flat) and c.name == "flat":
                lookups.setdefault("flat, batched", {})[length] = batched_us(c, queries, given.rounds)
    return {
        "settings": asdict(given),
        "copies": state.copy_count,
        "load_average": os.getloadavg(),
        "notes": {c.name: c.note for c in [*full, *views]},
        "changes": changes,
        "lookups": lookups,
        "wrong_queries": wrong,
    }


def printed(result: dict[str, Any]) -> None:
    lengths = result["settings"]["lengths"]
    print(f"\n{'lookup us: p50 (min..max) / p99 / cold':<40}" + "".join(f"{n:>42}" for n in lengths) + "   wrong")
    for name, row in result["lookups"].items():
        form = "{p50_us:.2f} ({p50_us_min:.2f}..{p50_us_max:.2f}) / {p99_us:.1f} / {cold_p50_us:.2f}"
        cells = [form.format(**c) for c in row.values()]
        print(f"{name:<40}" + "".join(f"{c:>42}" for c in cells) + f"   {result['wrong_queries'].get(name, '-')}")
    peer = result["lookups"].get(DynamoTree.name)
    for name, row in result["lookups"].items() if peer else ():
        if name != DynamoTree.name:
            cells = (f"{peer[n]['p50_us'] / row[n]['p50_us']:.1f}x" for n in lengths)
            print(f"{'  ahead: ' + name:<40}" + "".join(f"{c:>42}" for c in cells))
    print(f"\n{'changes':<32}{'store M blocks/cpu s':>24}{'remove M blocks/cpu s':>24}{'bytes/block':>14}")
    for name, row in result["changes"].items():
        rates = row["store_blocks_per_s"] / 1e6, (row["remove_blocks_per_s"] or float("nan")) / 1e6
        print(f"{name:<32}{rates[0]:>24.2f}{rates[1]:>24.2f}{row['bytes_per_block']:>14.0f}  ({row['bytes_from']})")


def drawn(result: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for name, row in result["lookups"].items():
        axes.plot(list(row), [c["p50_us"] for c in row.values()], marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="blocks in the prompt", ylabel="lookup p50, us")
    axes.set_title(f"{result['settings']['blocks']:,} blocks, {result['settings']['nodes']} nodes")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    given = settings.given(Settings)
    result = measured(given)
    printed(result)
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{given.blocks}_blocks_{given.nodes}_nodes"
    (out / f"{stem}.json").write_text(json.dumps(result, indent=1))
    drawn(result, out / f"{stem}.svg")
    print(f"\n{out / stem}.json and .svg")


if __name__ == "__main__":
    main()
