"""All theorems, and proving many of them on several processes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from . import kit

MODULES = (
    *("quota", "unbounded", "exact", "noninterference", "reads", "scopes", "judging", "policies", "disclosures"),
    *("keys", "index", "cost", "splits"),
)


def load() -> None:
    """All theorems are in `kit.THEOREMS`, in the order of MODULES."""
    for name in MODULES:
        importlib.import_module(f"proofs.{name}")


def prove_one(id: str, export: bool = False) -> kit.Report:
    """The report on one theorem; needs nothing but its id, so that another process can make it."""
    load()
    return kit.prove(id, export=export)


def prove_many(ids: list[str], *, jobs: int, export: bool = False) -> Iterator[kit.Report]:
    """Reports in the order of `ids`."""
    if jobs <= 1:
        yield from (prove_one(id, export) for id in ids)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(prove_one, ids, [export] * len(ids))
