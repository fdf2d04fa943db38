"""A canary prompt goes through votes, releases, predictors, routers and workers; nothing they keep or say contains it."""

from __future__ import annotations

import json
import pickle
import re
import types
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from kvshare_research.core.foresight import Foresight
from kvshare_research.core.nouns import Request, Segment
from kvshare_research.core.ports import Disclosure
from kvshare_research.core.rights import PUBLIC, TENANT, USER, Scope
from kvshare_research.disclosure.after_k import AfterK
from kvshare_research.disclosure.dp_batch import DpBatch
from kvshare_research.disclosure.dp_svt import DpSvt
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.driver.assembly import Place
from kvshare_research.driver.log import EventLog
from kvshare_research.prefetch.ppm import Ppm
from kvshare_research.privacy.desk import Desk
from kvshare_research.privacy.ledger import Budget, Ledger
from kvshare_research.study.disclosing import Discloser
from kvshare_research.transport.wire import encode_core
from tests.core.fleet import fleet
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
    discloser = Discloser(HASHER, desk, lambda event: sim.at(sim.now_us, event), lambda: sim.router)
    said: list[bytes] = []
    place = Place(node=None, node_count=2, capacity_blocks=512, block_bytes=1, incarnation=1)
    log = EventLog("tests:none", {}, place)
    for machine in (sim.router, *sim.workers):
        _listen(machine, said, log)
    for number in range(1, 25):
        tenant = (number - 1) % TENANTS + 1
        request, chain = discloser.arrive(_request(number, tenant, len(tokens)), tokens, sim.now_us)
        sim.run()
        sim.inject(replace(request, arrival_us=sim.now_us + 1_000_000), chain)
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
        "router": walked(sim.router),
        "workers": walked(sim.workers),
        "desk": walked(desk),
        "hasher": walked(HASHER),
        "simulator": walked(sim),
        **{name: pickle.dumps(value) for name, value in kept.items()},
    }


def walked(*roots: Any) -> bytes:
    """All text, bytes, arrays and rows of numbers that can be reached from here: attributes, slots, items, closures."""
    seen: dict[int, Any] = {}
    out, left = [], list(roots)
    while left:
        item = left.pop()
        if id(item) in seen or isinstance(item, type | types.ModuleType):
            continue
        seen[id(item)] = item
        if isinstance(item, str):
            out.append(item.encode())
        elif isinstance(item, bytes | bytearray):
            out.append(bytes(item))
        elif isinstance(item, np.ndarray):
            out.append(item.tobytes())
        elif isinstance(item, Mapping):
            left += [*item.keys(), *item.values()]
        elif isinstance(item, Collection):
            out.append(",".join(map(str, (x for x in item if isinstance(x, int)))).encode())
            left += item
        else:
            left += [getattr(item, name) for name in _fields(item) if hasattr(item, name)]
            left += [cell.cell_contents for cell in getattr(item, "__closure__", None) or ()]
            left += [getattr(item, "__self__", None)]
    return b"\n".join(out)


def _fields(item: Any) -> set[str]:
    slots = [getattr(kind, "__slots__", ()) for kind in type(item).__mro__]
    names = {name for row in slots for name in ((row,) if isinstance(row, str) else row)}
    return names | set(getattr(item, "__dict__", {}))


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


def _with_question() -> Tokens:
    """The canary, and a question of its user's that nothing else contains."""
    return np.concatenate([canary_tokens()[:-40], np.arange(60_000, 60_040, dtype=np.uint32)])


def _disclosing(policy: Disclosure) -> Discloser:
    sim = fleet(2, capacity=512, directory=DIRECTORY)
    budget = Budget(epsilon=90.0, delta=0.1, unit="tenant", population=TENANTS)
    desk = Desk(policy, SeededNoise(2), Ledger(budget, None))
    return Discloser(HASHER, desk, lambda event: None, lambda: sim.router)


def test_the_text_of_votes_is_held_no_longer_than_the_mechanism_may_need_it() -> None:
    """The one place where a prompt is more than names: until the period closes, and only what may be shared of it."""
    tokens = _with_question()
    shared, private = tokens[:-40], tokens[-40:]
    discloser = _disclosing(DpBatch(epsilon=9.0, delta=0.01, l0=1, unit="tenant", period_us=1_000))
    discloser.arrive(_request(1, 1, len(tokens)), tokens, 0)
    held = walked(discloser)
    assert found(shared, held), "nothing was held: this test would see nothing"
    assert not found(private, held)
    bare = walked([v for n, v in vars(discloser).items() if n != "texts"])
    assert not found(tokens, bare), "only the texts hold it"
    other = np.arange(len(tokens), dtype=np.uint32)
    discloser.arrive(
        _request(2, 2, len(tokens)), other, 1_000
    )  # the first period is over, and one vote released nothing
    assert not discloser.desk.released
    assert not found(tokens, walked(discloser))
    assert found(other[:-40], walked(discloser)), "the new period has its own"


def test_where_every_request_releases_no_text_outlasts_its_request_but_what_is_released() -> None:
    tokens = _with_question()
    discloser = _disclosing(AfterK(k=2, unit="tenant"))
    discloser.arrive(_request(1, 1, len(tokens)), tokens, 0)
    assert not found(tokens, walked(discloser))
    discloser.arrive(_request(2, 2, len(tokens)), tokens, 1)
    assert discloser.desk.released
    assert found(tokens[:-40], walked(discloser))
    assert not found(tokens[-40:], walked(discloser))


def test_an_online_mechanism_keeps_the_text_of_what_it_may_release_until_its_horizon_ends() -> None:
    tokens = _with_question()
    checks = 3
    policy = DpSvt(l0=2, checks=checks, epsilon=1.0, delta=1e-6, unit="tenant", period_us=1_000)
    discloser = _disclosing(policy)
    discloser.arrive(_request(1, 1, len(tokens)), tokens, 0)
    other = np.arange(len(tokens), dtype=np.uint32)
    for check in range(1, checks + 1):
        discloser.arrive(_request(1 + check, 2, len(tokens)), other, 1_000 * check)
        assert found(tokens[:-40], walked(discloser)) == (check < checks)


def test_nothing_contains_the_canary(tmp_path: Path) -> None:
    tokens, places = run(tmp_path)
    assert [place for place, data in places.items() if found(tokens, data)] == []
    assert all(places.values()), "an empty place proves nothing"


def test_the_walk_finds_it_anywhere() -> None:
    tokens = canary_tokens()
    for planted in (tokens, TEXT, tokens.tolist(), {"a": {3: (tokens,)}}, lambda: tokens, SeededNoise(1)):
        if isinstance(planted, SeededNoise):
            planted.hidden = [tokens]  # type: ignore[attr-defined]
        assert found(tokens, walked([planted]))


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
