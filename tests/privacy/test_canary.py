"""A canary prompt goes through votes, releases, predictors, routers and workers; nothing they keep or say contains it."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from kvshare_research.core import messages as m
from kvshare_research.core.foresight import Foresight
from kvshare_research.core.nouns import Request, Segment
from kvshare_research.core.rights import PUBLIC, TENANT, USER, Scope
from kvshare_research.disclosure.dp_batch import DpBatch
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.driver.assembly import Place
from kvshare_research.driver.log import EventLog
from kvshare_research.prefetch.ppm import Ppm
from kvshare_research.privacy.desk import Desk
from kvshare_research.privacy.ledger import Budget, Ledger
from kvshare_research.transport.wire import encode_core
from tests.core.test_fleet import fleet
from tests.disclosure.test_disclosing import DIRECTORY, HASHER, TENANTS

TEXT = "wisteria quasar 7719: the merger closes on Thursday"
RUN = 4  # so many tokens in a row give a prompt away
Tokens = NDArray[np.uint32]


def canary_tokens() -> Tokens:
    """A prompt like none other: the text's bytes far up in the vocabulary, repeated to a few blocks."""
    return (np.frombuffer((TEXT * 3).encode(), np.uint8).astype(np.uint32) + 40_000).repeat(1)


def traces(tokens: Tokens) -> list[bytes]:
    """How a stretch of the prompt would look in memory, on the wire and in text."""
    out = [TEXT.encode(), TEXT[9:25].encode()]
    for start in range(0, len(tokens) - RUN, 3):
        part = tokens[start : start + RUN]
        out += [part.astype(kind).tobytes() for kind in ("<u4", ">u4", "<i8", ">i8", "<u2", ">u2")]
        out.append(msgspec.msgpack.encode(part.tolist())[1:])
        out += [sign.join(map(str, part.tolist())).encode() for sign in (",", ", ", " ", "\n")]
    return out


def found(tokens: Tokens, data: bytes) -> bool:
    return any(trace in data for trace in traces(tokens))


def run(tmp_path: Path) -> tuple[Tokens, dict[str, bytes]]:
    """Six tenants ask the canary in their own scopes; it is voted for, released, shared and prefetched. All that was
    said and kept, by place."""
    tokens = canary_tokens()
    sim = fleet(2, capacity=512, directory=DIRECTORY)
    sim.router.foresight = Foresight(
        Ppm(
            scope="everybody",
            price_ps_per_byte=0,
            inflight_bytes_max=1 << 40,
            horizon_us=10_000_000,
            proposals_max=2,
            probability_min=0.0,
        )
    )
    ledger_file = tmp_path / "ledger.json"
    policy = DpBatch(epsilon=9.0, delta=0.01, l0=1, unit="tenant", period_us=25_000_000)
    budget = Budget(epsilon=90.0, delta=0.1, unit="tenant", population=TENANTS)
    desk = Desk(policy, SeededNoise(2), Ledger(budget, ledger_file))
    said: list[bytes] = []
    place = Place(node=None, node_count=2, capacity_blocks=512, block_bytes=1, incarnation=1)
    log = EventLog("tests:none", {}, place)
    for machine in (sim.router, *sim.workers):
        _listen(machine, said, log)
    for number in range(1, 25):
        tenant = (number - 1) % TENANTS + 1
        request = _request(number, tenant, len(tokens))
        prompt = HASHER.prompt(request, tokens, warmup=False, released=sim.router.promoted)
        desk.vote(prompt.offer, prompt.request)
        sim.inject(replace(prompt.request, arrival_us=sim.now_us + 1_000_000), prompt.chain)
        sim.run()
        if desk.advance(sim.now_us):
            sim.at(sim.now_us, m.PrefixesReleased(prefixes=desk.prefixes()))
            sim.run()
    assert desk.released, "the canary was never released: the test would see nothing of it"
    assert sum(w.prefetching.counters["landed_blocks"] for w in sim.workers) > 0, "nothing was prefetched"
    assert any(o.cross_tenant_tokens > 0 for o in sim.outcomes), "nothing was shared"
    kept: dict[str, Any] = {
        "index": [sim.router.replica.store.rows(n) for n in range(2)],
        "votes": desk._state.by_unit,
        "released": desk.released,
        "predictor": sim.router.foresight.state,
        "outcomes": sim.outcomes,
    }
    return tokens, {
        "events and effects": b"\n".join(said),
        "log": log.to_bytes(),
        "ledger": ledger_file.read_bytes(),
        "counters": json.dumps([desk.counters, sim.router.foresight.counters]).encode(),
        "words": repr((sim.router, desk, HASHER, kept["outcomes"])).encode(),
        **{name: pickle.dumps(value) for name, value in kept.items()},
    }


def _request(number: int, tenant: int, token_count: int) -> Request:
    scopes = (Scope(PUBLIC, 0), Scope(TENANT, tenant), Scope(USER, tenant))
    counts = (16, token_count - 56, 40)
    segments = tuple(
        Segment(scope_id=DIRECTORY.scope_id(s), token_count=n) for s, n in zip(scopes, counts, strict=True)
    )
    return Request(
        request_id=number, tenant_id=tenant, user_id=tenant, segments=segments, output_tokens_max=1,
        ingress=1 - number % 2, arrival_us=0, executor=number % 2,
    )  # fmt: skip


def _listen(machine: Any, said: list[bytes], log: EventLog) -> None:
    inner = machine.handle

    def handle(event: Any, now_us: int) -> Any:
        effects = inner(event, now_us)
        said.extend(encode_core(item) for item in (event, *effects))
        log.record(now_us, event, effects)
        return effects

    machine.handle = handle


def test_nothing_contains_the_canary(tmp_path: Path) -> None:
    tokens, places = run(tmp_path)
    assert [place for place, data in places.items() if found(tokens, data)] == []
    assert all(places.values()), "an empty place proves nothing"


@pytest.mark.parametrize("form", ["text", "array", "message", "list"])
def test_the_search_would_find_it(form: str) -> None:
    tokens = canary_tokens()
    data = {
        "text": f"prompt: {TEXT}".encode(),
        "array": b"\0" * 7 + tokens[8:40].tobytes(),
        "message": msgspec.msgpack.encode({"tokens": tokens[5:30].tolist()}),
        "list": json.dumps(tokens[2:20].tolist()).encode(),
    }[form]
    assert found(tokens, data)
    assert not found(tokens, re.sub(rb".", b"x", data, flags=re.DOTALL))
