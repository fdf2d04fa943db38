"""Calibrates the engine on the first half of a measured vLLM run, and foretells the TTFT of the second."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from numpy.typing import NDArray

from experiments.table import show
from kvshare_research.cli import conf_root
from kvshare_research.config import Run, check, plain
from kvshare_research.core.nouns import Chain, Request, Segment
from kvshare_research.driver.simulator_spec import PrefillSpec
from kvshare_research.study.simulated import build_fleet

FOLDER = "prefill/llmservingsim/measured_vllm"
BLOCK_TOKENS = 16
EVALUATIONS, POPULATION = 160, 16
KV_BYTES_PER_TOKEN = 131_072  # Llama-3.1-8B in bf16: 32 layers, 8 KV heads of 128
# ps: c0 per chunk, c1 per prompt token, decode step, per decoding request, per token of context; a rough start
START = np.array([2e9, 80e6, 20e9, 50e6, 50e3])
# As the runs' own metadata says; the larger card's pool is not stated there: what 96 GB less 16 GB of weights hold.
GPUS = {"RTX4090": (41_408, 256), "RTXPRO6000": (540_000, 128)}
CHUNK_TOKENS = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run, in order of arrival; us since the first arrival."""

    arrival_us: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    ttft_us: NDArray[np.float64]
    e2e_us: NDArray[np.float64]


def read(root: Path, gpu: str) -> Measured:
    """The run as logged. Arrivals are on another clock than the rest: the quickest to be queued sets the offset."""
    lines = (root / FOLDER / gpu / "Llama-3.1-8B" / "requests.jsonl").read_text().splitlines()
    rows = sorted((json.loads(line) for line in lines), key=lambda row: row["arrival_time"])
    column = {name: np.array([row[name] for row in rows]) for name in rows[0] if name != "request_id"}
    offset = (column["queued_ts"] - column["arrival_time"]).min()
    arrival = column["arrival_time"] + offset
    return Measured(
        arrival_us=((arrival - arrival[0]) * 1e6).astype(np.int64),
        input_tokens=column["input_toks"],
        output_tokens=column["output_toks"],
        ttft_us=(column["first_token_ts"] - arrival) * 1e6,
        e2e_us=(column["last_token_ts"] - arrival) * 1e6,
    )


def configured(gpu: str) -> Run:
    """One node with the run's limits, and no link to anybody."""
    pool_tokens, batch_max = GPUS[gpu]
    with initialize_config_dir(str(conf_root()), version_base="1.3"):
        cfg = compose(
            "config",
            ["driver=simulator", "driver.node_count=1", f"driver.block_tokens={BLOCK_TOKENS}", "engine=tiny",
             f"driver.kv_bytes_per_token={KV_BYTES_PER_TOKEN}", f"driver.pool_tokens={pool_tokens}", "index=flat",
             f"driver.batch_max={batch_max}", f"driver.chunk_tokens={CHUNK_TOKENS}", "tenants=one"],
        )  # fmt: skip
    return check(cfg, plain(cfg).keys())


def requests(run: Measured) -> list[tuple[Request, Chain]]:
    """Prompts that share nothing with one another, as in the run."""
    rows = []
    for i, tokens in enumerate(run.input_tokens.tolist()):
        blocks = tokens // BLOCK_TOKENS
        hashes = np.random.default_rng(i).bytes(16 * blocks)
        request = Request(
            request_id=i, tenant_id=1, segments=(Segment(scope_id=0, token_count=tokens),),
            output_tokens_max=int(run.output_tokens[i]), ingress=0, arrival_us=int(run.arrival_us[i]),
        )  # fmt: skip
        rows.append((request, Chain(hashes=hashes, scope_ends=((0, blocks),), block_tokens=BLOCK_TOKENS)))
    return rows


def simulated(base: Run, given: list[tuple[Request, Chain]], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(TTFT, end-to-end) in us of every request, in order of arrival."""
    c0, c1, step, per_request, per_token = (int(v) for v in values)
    driver = dataclasses.replace(
        base.parts["driver"], decode_step_ps=step, decode_ps_per_request=per_request, decode_ps_per_token=per_token,
        prefill=PrefillSpec(c0_ps=c0, c1_ps_per_token=c1, c2_ps_per_token=0, c3_ps_per_token2=0, c4_ps_per_token2=0),
    )  # fmt: skip
    run = dataclasses.replace(base, parts={**base.parts, "driver": driver})
    fleet = build_fleet(run, dict(run.resolved))
    outcomes = sorted(fleet.ask(given), key=lambda outcome: outcome.request_id)
    return np.array([(o.ttft_us, o.end_to_end_us) for o in outcomes], np.float64)


def calibrated(base: Run, measured: Measured, given: list[tuple[Request, Chain]], half: int) -> NDArray[np.float64]:
    """The five figures that bring TTFT and end-to-end time of the first `half` requests nearest, by CMA-ES."""
    import cma

    truth = np.stack([measured.ttft_us, measured.e2e_us], axis=1)[:half]

    def loss(scales: NDArray[np.float64]) -> float:
        found = simulated(base, given, START * np.exp(scales))[:half]
        return float(np.abs(np.log(np.maximum(found, 1.0) / truth)).mean())

    chance = np.random.default_rng(1)  # its own: others draw from NumPy's global one
    options = {"seed": np.nan, "randn": lambda *size: chance.standard_normal(size), "popsize": POPULATION}
    strategy = cma.CMAEvolutionStrategy(
        np.zeros(len(START)), 0.5, options | {"verbose": -9, "maxfevals": EVALUATIONS}
    )  # fmt: skip
    while not strategy.stop():
        asked = strategy.ask()
        strategy.tell(asked, [loss(scales) for scales in asked])
    return START * np.exp(strategy.result.xbest)


def main(root: Path) -> int:
    """Prints the calibration and the table of errors; 1 if one is outside its band."""
    ours: dict[str, float] = {}
    for gpu in GPUS:
        base, measured = configured(gpu), read(root, gpu)
        given = requests(measured)
        half = len(given) // 2
        values = calibrated(base, measured, given, half)
        found = simulated(base, given, values)
        names = ("c0, ms", "c1, us a token", "decode step, ms", "us a request", "ns a token of context")
        scaled = zip(names, values / np.array([1e9, 1e6, 1e9, 1e6, 1e3]), strict=True)
        print(f"{gpu}: " + ", ".join(f"{name} {value:.3g}" for name, value in scaled))
        for what, rows in (("calibrated", slice(0, half)), ("held out", slice(half, None))):
            for share in (50, 95):
                pair = [np.quantile(v[rows], share / 100) / 1e6 for v in (measured.ttft_us, found[:, 0])]
                print(f"  {what}, TTFT p{share}: measured {pair[0]:.2f} s, simulated {pair[1]:.2f} s")
                if what == "held out":
                    ours[f"{gpu}: error of TTFT p{share}"] = pair[1] / pair[0] - 1
    print()
    return show(Path(__file__).parent, ours)


if __name__ == "__main__":
    data: Any = os.environ.get("KVSHARE_DATA")
    sys.exit("set KVSHARE_DATA to the folder of public data" if data is None else main(Path(data)))
