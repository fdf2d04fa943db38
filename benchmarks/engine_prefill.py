"""Prefill time by (tokens computed, tokens reused from the pool), the copying of the reused ones, and decode time.

    python benchmarks/engine_prefill.py engine=smollm engine.threads=1
    python benchmarks/engine_prefill.py engine=huggingface engine.model=/models/mine 'reused_tokens=[0,4096]'

Measured on this machine, fastest of `repeats`; slots are scattered over the pool, as after long use.
"""

from __future__ import annotations

import os
import sys

import hydra
import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from kvshare_research.build import build
from kvshare_research.cli import conf_root
from kvshare_research.core.errors import KvShareError
from kvshare_research.engine.base import Engine, EngineSpec

DECODED_TOKENS = 16


def measure(engine: Engine, computed: list[int], reused: list[int], repeats: int, seed: int) -> Table:
    """A row per reused count: `computing + copying` in ms for every computed count, then ms for a decoded token."""
    rng = np.random.default_rng(seed)
    slots = rng.permutation(engine.pool.block_count).tolist()
    tokens = rng.integers(0, engine.spec.vocabulary_count, max(computed) + max(reused), dtype=np.uint32)
    table = Table("reused", *(f"compute {s}" for s in computed), "decode 1", title=f"{engine.spec.name}, ms")
    for k in reused:
        cells = []
        for s in computed:
            runs = [engine.prefill(tokens[: k + s], k, k + s, slots) for _ in range(repeats)]
            best = min(runs, key=lambda run: run.elapsed_us + run.merge_us)
            cells.append(f"{best.elapsed_us / 1e3:.1f} + {best.merge_us / 1e3:.1f}")
        position = k + computed[0]
        decoded = [engine.decode(int(tokens[0]), position, DECODED_TOKENS, slots) for _ in range(repeats)]
        per_token_us = min(run.elapsed_us / len(run.tokens) for run in decoded)
        table.add_row(str(k), *cells, f"{per_token_us / 1e3:.1f}")
    return table


@hydra.main(config_path=str(conf_root()), config_name="engine_prefill", version_base="1.3")
def main(config: DictConfig) -> None:
    try:
        spec: EngineSpec = build(OmegaConf.to_container(config.engine, resolve=True), "engine", EngineSpec)
        engine = spec.load(local_rank=0)
        table = measure(engine, list(config.computed_tokens), list(config.reused_tokens), config.repeats, config.seed)
    except KvShareError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    Console().print(table)
    print(f"{spec}; other load on this machine in the last minute: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
