"""Fits the cost model to public measurements by gradient, with intervals, and tells the error on shapes held out."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.table import show
from kvshare_research.cost.gradient import Fitted, fit, prefill_columns

Floats = NDArray[np.float64]
SPLITWISE = "prefill/splitwise/perf_model.csv"
ATTENTION = "prefill/llmservingsim/llama70b_h100_tp4_attn_prefill.csv.zst"
MODEL, HARDWARE, TENSOR_PARALLEL = "llama2-70b", "h100-80gb", 8
ATTENTION_ROWS = 4_000
DECODE_NAMES = ("per step", "per request", "per token of context")


def held_out(shapes: Sequence[Any], seed: int) -> NDArray[np.bool_]:
    """One shape in four, never the least or the largest: no repeat of one is on both sides."""
    kinds = sorted(set(shapes))
    inner = np.random.default_rng(seed).permutation(len(kinds) - 2)[: max(1, len(kinds) // 4)] + 1
    chosen = {kinds[i] for i in inner}
    return np.array([shape in chosen for shape in shapes])


def judged(title: str, columns: Floats, ms: Floats, names: Sequence[str], shapes: Sequence[Any]) -> float:
    """Prints the coefficients with both intervals; the median error on the shapes held out."""
    out = held_out(shapes, 0)
    kept = [shape for shape, held in zip(shapes, out, strict=True) if not held]
    found = fit(columns[~out], ms[~out], names, kept)
    error = float(np.median(np.abs(columns[out] @ np.array([row.value for row in found]) / ms[out] - 1)))
    print(f"{title}: {len(set(kept))} shapes fitted, {len(set(shapes)) - len(set(kept))} held out, off {error:.1%}")
    for row in found:
        print(f"  {_line(row)}")
    return error


def _line(row: Fitted) -> str:
    ns = [f"{1e6 * v:.4g}" for v in (row.value, *row.hessian, *row.bootstrap)]
    return f"{row.name}: {ns[0]} ns, by Hessian [{ns[1]}, {ns[2]}], by bootstrap [{ns[3]}, {ns[4]}]"


def splitwise(root: Path) -> tuple[float, float]:
    """(prefill, decode) errors of measured Llama-2-70B on eight H100s."""
    with (root / SPLITWISE).open() as file:
        rows = [
            row for row in csv.DictReader(file)
            if (row["model"], row["hardware"], int(row["tensor_parallel"])) == (MODEL, HARDWARE, TENSOR_PARALLEL)
        ]  # fmt: skip

    def column(name: str, chosen: list[dict[str, str]]) -> Floats:
        return np.array([float(row[name]) for row in chosen])

    alone = [row for row in rows if row["batch_size"] == "1"]
    new = column("prompt_size", alone)
    columns, names = prefill_columns(new, np.zeros_like(new))
    told = [0, 1, 3]  # nothing is cached in these runs
    first = judged(
        "prefill", columns[:, told], column("prompt_time", alone), [names[j] for j in told], new.tolist()
    )  # fmt: skip
    batch = column("batch_size", rows)
    context = batch * (column("prompt_size", rows) + column("token_size", rows) / 2)
    steps = np.stack([np.ones_like(batch), batch, context], axis=1)
    return first, judged("decode", steps, column("token_time", rows), DECODE_NAMES, [tuple(s) for s in steps.tolist()])


def attention(root: Path) -> float:
    """Error of the cost of a cached prefix: attention of one layer of a 70B model, new tokens beside cached ones."""
    import zstandard

    text = zstandard.ZstdDecompressor().stream_reader((root / ATTENTION).open("rb")).read().decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    chosen = np.random.default_rng(0).choice(len(rows), ATTENTION_ROWS, replace=False)
    table = np.array(
        [[float(rows[i][n]) for n in ("prefill_chunk_size", "kv_cache_size", "prediction")] for i in chosen]
    )
    columns, names = prefill_columns(table[:, 0], table[:, 1])
    shapes = [tuple(row) for row in table[:, :2].tolist()]
    return judged("attention with a cached prefix", columns, table[:, 2] / 1e6, names, shapes)


def main(root: Path) -> int:
    """Prints fits and errors; 1 if an error is outside its band."""
    prefill, decode = splitwise(root)
    ours = {
        "prefill, median error on held-out shapes": prefill,
        "decode, median error on held-out shapes": decode,
        "attention with a cached prefix, median error on held-out shapes": attention(root),
    }
    print()
    return show(Path(__file__).parent, ours)


if __name__ == "__main__":
    data: Any = os.environ.get("KVSHARE_DATA")
    sys.exit("set KVSHARE_DATA to the folder of public data" if data is None else main(Path(data)))
