"""Stale entries on real ranks: what left a pool unheard of costs time, never a token; and the index mends itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvshare_research.core.nouns import MissReason
from kvshare_research.core.worker import Worker
from kvshare_research.driver.assembly import assembly_at
from kvshare_research.driver.log import read_log
from kvshare_research.transport.wire import decode_core

from .test_mpi import FULL_BLOCKS, MPIEXEC, PROMPT_TOKENS, _end, _start

pytest.importorskip("mpi4py")
pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside python")]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stale")
    ended = _end(_start("stale", folder, 3))
    assert (ended.code, ended.said) == (0, ""), ended.stderr
    return folder


def case(out: Path, name: str) -> tuple[list[dict[str, Any]], dict[str, dict[str, int]]]:
    row = json.loads((out / f"{name}.json").read_text())
    assert row["complete"]
    assert all(o["status"] == 0 for o in row["outcomes"])
    return row["outcomes"], row["counters"]


def test_a_block_that_left_unheard_of_is_refused_computed_and_counted_as_stale(out: Path) -> None:
    """Prompt 1 is computed on node 0, prompt 2 drives part of it out; node 1 is sent to fetch what is gone."""
    (first, other, fetching, behind, again), counters = case(out, "evicted")
    stale = [dict(o["missed"]).get(int(MissReason.STALE), 0) for o in (first, other, fetching, behind, again)]
    assert stale[:3] == [0, 0, FULL_BLOCKS * 16]
    assert fetching["computed_tokens"] == PROMPT_TOKENS
    assert counters["node1"]["fetches failed: not available"] == counters["node0"]["refusals_sent"] >= 1
    assert 0 < stale[4] <= again["computed_tokens"], "what it was thought to have itself, it computes"
    assert fetching["output_tokens"] == again["output_tokens"] == first["output_tokens"]
    assert behind["output_tokens"] == other["output_tokens"]
    assert first["output_tokens"] != other["output_tokens"]


def test_with_every_other_entry_lost_all_are_served_and_tokens_are_the_same(out: Path) -> None:
    outcomes, _ = case(out, "lossy")
    by_prompt: dict[int, set[tuple[int, ...]]] = {}
    for outcome in outcomes:
        by_prompt.setdefault(outcome["request_id"] % 5, set()).add(tuple(outcome["output_tokens"]))
        assert sum(tokens for _, tokens in outcome["missed"]) == outcome["computed_tokens"]
    assert len(outcomes) == 16
    assert all(len(tokens) == 1 for tokens in by_prompt.values())
    assert len(by_prompt) == 5


def test_after_loss_the_index_is_what_the_ledgers_hold(out: Path) -> None:
    """The truth is decided again from each worker's log."""
    rows, counters = json.loads((out / "rows.json").read_text())
    assert counters["gap"] > 0
    for node, known in enumerate(rows):
        log = read_log((out / f"lossy.node{node}.log").read_bytes())
        worker = assembly_at(log.assembly).worker(log.config, log.place)
        assert isinstance(worker, Worker)
        for entry in log.entries:
            worker.handle(decode_core(entry.kind, entry.body), entry.now_us)
        held = sorted(b.block_hash.hex() for b in worker.ledger.named() if b.block_hash is not None)
        assert sorted(known) == held
        assert len(held) > 10
