"""Hashing a prompt of 131,072 tokens in blocks of 16: ours beside other hashes and other engines' chains.

    python -m benchmarks.hashing tokens=131072

Interleaved rounds in one process; the figure is the median, with the least. Every contender that another makes again
is compared with it first. Peers are left out, with a line, if they cannot be imported.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvshare_research.index import hashing, interop, table

from . import settings
from .siphash import checked, siphash128_chain
from .stubs import vllm_chain

BLOCK_TOKENS = 16
KEY = bytes(range(32))
assert table  # so that the compiled chain is used


@dataclass
class Settings:
    tokens: int = 131_072
    rounds: int = 9
    seed: int = 1
    out: str = "outputs/benchmarks/hashing"


@dataclass(frozen=True)
class Contender:
    """`keyed` and `bits` say what a hash buys; `takes` what it is made from."""

    name: str
    bits: int
    keyed: str
    takes: str
    run: Callable[[], Any]
    group: str = ""  # contenders of one group make the same


def linked(make: Callable[[bytes], bytes], data: bytes) -> list[bytes]:
    """A link per block: the hash of the one before and the block's bytes."""
    parent, out = bytes(16), []
    for start in range(0, len(data), 4 * BLOCK_TOKENS):
        parent = make(parent + data[start : start + 4 * BLOCK_TOKENS])
        out.append(parent)
    return out


def ours(tokens: Any, data: bytes) -> list[Contender]:
    import blake3

    def blake2b(message: bytes) -> bytes:
        return hashlib.blake2b(message, key=KEY, digest_size=16).digest()

    def keyed_blake3(message: bytes) -> bytes:
        return blake3.blake3(message, key=KEY).digest(length=16)

    ints = tokens.tolist()
    collision, prf = "key, no collisions", "key"
    return [
        Contender(
            "ours: spans of keyed BLAKE2s, compiled", 192, collision, "uint32 array",
            lambda: hashing._chain_compiled(KEY, hashing.ROOT_PARENT, tokens, BLOCK_TOKENS), group="spans",
        ),
        Contender(
            "ours: the same, from a list of ints", 192, collision, "list of ints",
            lambda: hashing._chain_compiled(KEY, hashing.ROOT_PARENT, np.frombuffer(array("I", ints), np.uint32), 16),
            group="spans",
        ),
        Contender(
            "ours: the same, hashlib", 192, collision, "uint32 array",
            lambda: hashing._chain_hashlib(KEY, hashing.ROOT_PARENT, data, 4 * BLOCK_TOKENS), group="spans",
        ),
        Contender("a link per block: BLAKE2b-128, hashlib", 128, collision, "bytes", lambda: linked(blake2b, data)),
        Contender("a link per block: BLAKE3-128, blake3", 128, collision, "bytes", lambda: linked(keyed_blake3, data)),
        Contender(
            "a link per block: SipHash-2-4-128, compiled", 128, prf, "uint32 array",
            lambda: siphash128_chain(np.frombuffer(KEY[:16], np.uint64), tokens, BLOCK_TOKENS),
        ),
    ]  # fmt: skip


def engines(tokens: Any) -> list[Contender]:
    """Other engines' chains of the same prompt, from a list of Python ints as they take it."""
    ints = tokens.tolist()
    return [
        Contender(
            "vLLM sha256_cbor, our interop", 256, "no", "list of ints",
            lambda: interop.vllm_sha256_cbor(ints, BLOCK_TOKENS, "0"), group="sha256_cbor",
        ),
        Contender("SGLang pages, our interop", 256, "no", "list of ints",
                  lambda: interop.sglang_pages(ints, BLOCK_TOKENS)),
        Contender(
            "Dynamo XXH3, our interop", 64, "no", "list of ints",
            lambda: interop.dynamo_local(ints, BLOCK_TOKENS), group="xxh3",
        ),
        Contender("llm-d FNV-1a over CBOR, our interop", 64, "no", "list of ints",
                  lambda: interop.llmd_cbor_fnv(ints, BLOCK_TOKENS, "m")),
    ]  # fmt: skip


def peers(tokens: Any) -> list[Contender]:
    """Those of the above that can be imported from their own packages."""
    ints, found = tokens.tolist(), []
    try:
        from dynamo._core import compute_block_hash_for_seq  # type: ignore[import-not-found]

        found.append(Contender("Dynamo XXH3, not chained, its own", 64, "no", "list of ints",
                               lambda: compute_block_hash_for_seq(ints, BLOCK_TOKENS), group="xxh3"))  # fmt: skip
    except ImportError as missing:
        print(f"Dynamo left out: {missing}", file=sys.stderr)
    try:
        from lmcache.v1.multiprocess.token_hasher import TokenHasher  # type: ignore[import-not-found]

        hasher = TokenHasher(chunk_size=BLOCK_TOKENS)
        found.append(Contender("LMCache BLAKE3, its own", 256, "no", "list of ints",
                               lambda: hasher.compute_chunk_hashes(ints)))  # fmt: skip
    except ImportError as missing:
        print(f"LMCache left out: {missing}", file=sys.stderr)
    try:
        chain = vllm_chain("0")
        found.append(Contender("vLLM sha256_cbor, its own", 256, "no", "list of ints",
                               lambda: chain(ints, BLOCK_TOKENS), group="sha256_cbor"))  # fmt: skip
    except Exception as missing:  # noqa: BLE001 -- a package half imported fails in any way
        print(f"vLLM left out: {missing!r}", file=sys.stderr)
    return found


def measured(given: Settings) -> dict[str, Any]:
    checked()
    tokens = np.random.default_rng(given.seed).integers(0, 128_000, given.tokens, dtype=np.uint32)
    contenders = [*ours(tokens, tokens.tobytes()), *engines(tokens), *peers(tokens)]
    first: dict[str, Any] = {}
    for c in contenders:  # also warms it
        made = c.run()
        if c.group:
            assert first.setdefault(c.group, made) == made, f"{c.name} makes something else"
    spent: dict[str, list[float]] = {c.name: [] for c in contenders}
    for _ in range(given.rounds):
        for c in contenders:
            start = time.perf_counter_ns()
            c.run()
            spent[c.name].append((time.perf_counter_ns() - start) / 1000)
    rows = [
        {"name": c.name, "bits": c.bits, "keyed": c.keyed, "takes": c.takes, "us": float(np.median(spent[c.name])),
         "us_min": min(spent[c.name])}
        for c in contenders
    ]  # fmt: skip
    return {"settings": asdict(given), "rows": rows}


def plotted(rows: list[dict[str, Any]], file: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    ordered = sorted(rows, key=lambda row: -row["us"])
    figure, axes = plt.subplots(figsize=(8, 0.35 * len(rows) + 1), layout="constrained")
    colours = ["tab:blue" if row["keyed"] != "no" else "tab:grey" for row in ordered]
    axes.barh([f"{row['name']} ({row['bits']} bits)" for row in ordered], [row["us"] for row in ordered], color=colours)
    axes.set_xscale("log")
    axes.set_xlabel("us per prompt (blue: keyed)")
    figure.savefig(file)


def main() -> None:
    given = settings.given(Settings)
    result = measured(given)
    base = result["rows"][0]["us"]
    print(
        f"{'hash of ' + str(given.tokens) + ' tokens':<50}{'us':>10}{'least':>10}{'/ ours':>8}  bits  keyed{'':14}takes"
    )
    for row in result["rows"]:
        ratio = row["us"] / base
        print(
            f"{row['name']:<50}{row['us']:>10.0f}{row['us_min']:>10.0f}{ratio:>8.1f}  {row['bits']:<4}  "
            f"{row['keyed']:<18} {row['takes']}"
        )
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{given.tokens}_tokens.json").write_text(json.dumps(result, indent=1))
    plotted(result["rows"], out / f"{given.tokens}_tokens.svg")


if __name__ == "__main__":
    main()
