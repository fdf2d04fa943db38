"""What the unit of sharing costs and brings: segment, sentence, blocks of 512, 64 and 16 tokens, single tokens.

    python -m benchmarks.granularity requests=2000 prompt_tokens=1024

One cache that keeps everything sees the prompts in order: each is looked up, then stored. `match rate` is the share of
prompts of which at least one unit was there, `saved` the share of all prompt tokens that lay in matched units.
The first rows name the units themselves, whatever their length, in one flat table: what a cache of just that unit has
to keep. The rows `index=...` are the policies of conf/index over blocks of 16 tokens, as the router runs them: they
keep blocks and count whole units (`radix`: estimated tokens).
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from msgspec.structs import replace
from omegaconf import OmegaConf

from kvshare_research.build import build
from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import TOKEN_NAME_BYTES
from kvshare_research.core.ports import Index
from kvshare_research.core.rights import EVERYBODY
from kvshare_research.guard.detail import Detail
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace, chain
from kvshare_research.index.flat import FlatStore, keys_of
from kvshare_research.index.radix import RadixStore
from kvshare_research.index.units import block_ends, segment_ends, sentence_ends, unit_hashes
from kvshare_research.workload.base import PromptItem, WorkloadInput
from kvshare_research.workload.generated import GeneratedWorkload
from kvshare_research.workload.parties import load_parties

from . import settings

KEY = bytes(range(32))
BLOCK_TOKENS = 16
EVERYBODYS = Directory(tenants=(), groups=(), scopes=(EVERYBODY,))
ROOT = Path(__file__).parents[1]


@dataclass
class Settings:
    """`overlaps` are mixed evenly; each is the share of a prompt that its application has in common."""

    requests: int = 2000
    prompt_tokens: int = 1024
    overlaps: list[float] = field(default_factory=lambda: [0.3, 0.5, 0.8])
    seed: int = 1
    out: str = "outputs/benchmarks/granularity.json"


class Words:
    """A tokenizer of words and marks: what matters here is where sentences end."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def encode(self, text: str) -> Any:
        words = re.findall(r"\w+|\s|[^\w\s]", text)
        return np.array([self.ids.setdefault(w, len(self.ids)) for w in words], np.uint32)

    def enders(self) -> Any:
        return np.array([i for w, i in self.ids.items() if w in ".?!\n"], np.uint32)


def prompts_of(given: Settings, words: Words) -> list[PromptItem]:
    parties = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "tenants" / "demo.yaml"))
    assert isinstance(parties, dict)
    directory, catalogue = load_parties(parties)  # type: ignore[arg-type]
    base = yaml.safe_load((ROOT / "conf" / "workload" / "generated.yaml").read_text())
    base = {k: v for k, v in base.items() if k != "_target_"}
    items = []
    for at, overlap in enumerate(given.overlaps):
        own = {"request_count": given.requests // len(given.overlaps), "prompt_tokens": given.prompt_tokens}
        workload = GeneratedWorkload(**{**base, **own, "overlap": overlap})
        items += workload.make(
            WorkloadInput(
                tokenizer=words, directory=directory, catalogue=catalogue, seed=given.seed + at, block_tokens=16
            )
        )
    random.Random(given.seed).shuffle(items)
    return items


def chained(items: list[PromptItem], ends_of: Callable[[PromptItem], list[int]]) -> dict[str, float]:
    """The flat index over hashes of units."""
    store, matched, saved = FlatStore(1), 0, 0
    hash_us, lookup_us = [], []
    for item in items:
        start = time.perf_counter_ns()
        ends = ends_of(item)
        hashes = unit_hashes(KEY, item.tokens, ends)
        middle = time.perf_counter_ns()
        units = int(store.match_keys(keys_of(b"".join(hashes)))[0])
        lookup_us.append((time.perf_counter_ns() - middle) / 1000)
        hash_us.append((middle - start) / 1000)
        matched += units > 0
        saved += ends[units - 1] if units else 0
        fresh = hashes[units:]
        store.store(0, 0, hashes[units - 1] if units else None, fresh)
    return row(items, matched, saved, store.entry_count(), store.size_bytes, hash_us, lookup_us)


def by_policy(items: list[PromptItem], name: str, detail: Detail) -> dict[str, float]:
    """An index of conf/index over 16-token blocks; all prompts public, under one key."""
    loaded = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "index" / f"{name}.yaml"))
    store = build(loaded, "index", Index).new_store(1)
    space = ModelSpace(model="words", dtype="none", block_tokens=BLOCK_TOKENS)
    place: Any = {"directory": EVERYBODYS, "ring": KeyRing(RootSecret.from_seed(0)), "space": space, "detail": detail}
    matched, saved, hash_us, lookup_us = 0, 0, [], []
    for item in items:
        segments = tuple(replace(s, scope_id=0) for s in item.request.segments)
        start = time.perf_counter_ns()
        asked = chain(item.tokens, segments, (0,) * len(segments), **place)
        middle = time.perf_counter_ns()
        if isinstance(store, RadixStore):
            tokens = store.estimate(asked).get((0, 0), 0)
        else:
            tokens = BLOCK_TOKENS * max((run.block_count for run in store.match(asked).runs), default=0)
        lookup_us.append((time.perf_counter_ns() - middle) / 1000)
        hash_us.append((middle - start) / 1000)
        matched += tokens > 0
        saved += tokens
        held = max((run.block_count for run in store.inner.match(asked).runs), default=0)
        parent = asked.block_hash(held - 1) if held else None
        store.seen(asked)
        store.store(0, 0, parent, asked.block_hashes(held, asked.block_count))
    size = store.inner.size_bytes
    if isinstance(store, RadixStore):  # the names, and about 300 bytes of dictionary rows for each block
        size += store.named_blocks * (BLOCK_TOKENS * TOKEN_NAME_BYTES + 300)
    return row(items, matched, saved, store.entry_count(), size, hash_us, lookup_us)


def row(
    items: list[PromptItem], matched: int, saved: int, entries: int, size: int, hash_us: Any, lookup_us: Any
) -> dict[str, float]:
    return {
        "match_rate": matched / len(items),
        "saved_ratio": saved / sum(len(i.tokens) for i in items),
        "entry_count": entries,
        "size_bytes": size,
        "hash_p50_us": float(np.median(hash_us)),
        "lookup_p50_us": float(np.median(lookup_us)),
    }


def measured(given: Settings) -> dict[str, dict[str, float]]:
    words = Words()
    items = prompts_of(given, words)
    enders = words.enders()
    cuts: dict[str, Callable[[PromptItem], list[int]]] = {
        "segment": lambda i: segment_ends([s.token_count for s in i.request.segments]),
        "sentence": lambda i: sentence_ends(i.tokens, enders),
        "block 512": lambda i: block_ends(len(i.tokens), 512),
        "block 64": lambda i: block_ends(len(i.tokens), 64),
        "block 16": lambda i: block_ends(len(i.tokens), 16),
        "token": lambda i: block_ends(len(i.tokens), 1),
    }
    details = {
        "segment": Detail(reads="segments"),
        "sentence": Detail(reads="sentences", enders=enders),
        "radix": Detail(reads="tokens"),
    }
    rows = {name: chained(items, cut) for name, cut in cuts.items()}
    return rows | {f"index={name}": by_policy(items, name, detail) for name, detail in details.items()}


def main() -> None:
    given = settings.given(Settings)
    rows = measured(given)
    print(f"{'unit':<16}{'match rate':>12}{'saved':>9}{'entries':>10}{'MB':>8}{'hash us':>10}{'lookup us':>11}")
    for name, r in rows.items():
        print(
            f"{name:<16}{r['match_rate']:>12.1%}{r['saved_ratio']:>9.1%}{r['entry_count']:>10.0f}"
            f"{r['size_bytes'] / 1e6:>8.2f}{r['hash_p50_us']:>10.1f}{r['lookup_p50_us']:>11.2f}"
        )
    out = Path(given.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"settings": asdict(given), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
