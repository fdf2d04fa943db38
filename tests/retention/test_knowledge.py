"""What policies are told beside a block's own row is true: the queue, balances, attention, the future. And quotas bind all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from kvshare_research.attack.probing import modelled_fleet
from kvshare_research.core import messages as m
from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import AccountSpec, Action, Chain, Plan, Request, Segment, Status
from kvshare_research.core.ports import Retention
from kvshare_research.core.rights import EVERYBODY, TENANT, Reader, Scope
from kvshare_research.core.running import WorkerPolicy
from kvshare_research.core.worker import Worker
from kvshare_research.retention.belady import BeladyRetention
from kvshare_research.retention.fair_floors import FairFloorsRetention
from kvshare_research.retention.h2o import H2oRetention
from kvshare_research.retention.look_ahead import LookAheadRetention
from kvshare_research.retention.prefixshield import PrefixShieldRetention
from kvshare_research.retention.ttl import TtlRetention
from kvshare_research.schedule.fcfs import FcfsSchedule
from kvshare_research.study.assembly import check_retention

from .test_contract import CONF, NAMES, policy

BLOCK_TOKENS = 4
DIRECTORY = Directory(tenants=("a", "b"), groups=(), scopes=(EVERYBODY, Scope(TENANT, 1), Scope(TENANT, 2)))


def ledger(retention: Retention, capacity: int = 6) -> Ledger:
    specs = [AccountSpec(scope_id=i, reserved_blocks=0, limit_blocks=capacity) for i in range(3)]
    return Ledger(capacity_blocks=capacity, accounts=specs, retention=retention)


def store(books: Ledger, name: str, now_us: int, scope_id: int = 1) -> None:
    """A block without parent is resident and unpinned."""
    taken, _ = books.allocate(scope_id, 1, now_us)
    assert taken is not None
    assert books.name(taken[0], name.encode().ljust(16), None, 0, 1, now_us)
    books.drop(taken[0])


def evicted(books: Ledger, count: int, now_us: int, scope_id: int = 2) -> list[str]:
    _, gone = books.allocate(scope_id, count, now_us)
    return [e.block_hash.decode().strip() for e in gone]


def test_waiting_requests_keep_what_they_want_as_long_as_they_wait() -> None:
    books = ledger(LookAheadRetention(), 3)
    for at, name in enumerate("xyz"):
        store(books, name, at)
    books.want([b"x".ljust(16), b"absent".ljust(16)], 1, 10)
    assert evicted(books, 1, 11) == ["y"]
    books.want([b"x".ljust(16), b"absent".ljust(16)], -1, 12)
    assert evicted(books, 1, 13) == ["x"]


def test_the_debtor_pays_until_time_has_paid_for_it() -> None:
    policy = PrefixShieldRetention(refill_blocks_per_s=1, burst_blocks=2)
    books = ledger(policy)
    store(books, "victim", 0)
    for i in range(4):
        store(books, f"scan{i}", 1 + i, scope_id=2)  # two more than its burst
    assert evicted(books, 2, 10) == ["scan0"], "one slot was free"
    later = ledger(policy)
    store(later, "victim", 0)
    for i in range(4):
        store(later, f"scan{i}", 1 + i, scope_id=2)
    assert evicted(later, 2, 5_000_000) == ["victim"], "out of debt: by last use"


def test_the_account_with_most_gives_first() -> None:
    books = ledger(FairFloorsRetention())
    store(books, "old", 0, scope_id=1)
    for i in range(4):
        store(books, f"flood{i}", 1 + i, scope_id=2)
    assert evicted(books, 3, 10, scope_id=0) == ["flood0", "flood1"]


def test_a_ttl_is_that_of_the_level_of_the_scope() -> None:
    books = ledger(TtlRetention(ttl_us=(0, 0, 100, 0, 0)), 2)
    books.values.levels = (0, 0, 2)
    store(books, "short", 50, scope_id=1)
    store(books, "long", 0, scope_id=2)
    assert evicted(books, 1, 60) == ["short"]


def test_the_oracle_keeps_what_is_asked_for_next() -> None:
    books = ledger(BeladyRetention(), 3)
    books.values.future = {b"soon".ljust(16): [5, 40], b"late".ljust(16): [90]}
    for at, name in enumerate(("soon", "late", "never")):
        store(books, name, at + 10)
    assert evicted(books, 2, 20) == ["never", "late"]


# ------------------------------------------------------------------ what the engine tells
class Alone:
    """One shipped worker with one real engine, no network: prompts one after the other."""

    def __init__(self, retention: Retention, capacity: int) -> None:
        from kvshare_research.engine.tiny import Tiny

        self.engine = Tiny(block_tokens=BLOCK_TOKENS, pool_bytes=1 << 18, attention_rows=3).load(0)
        books = Ledger(capacity_blocks=capacity, accounts=(), retention=retention)
        rules = WorkerPolicy(retention=retention, schedule=FcfsSchedule(), block_tokens=BLOCK_TOKENS, block_bytes=64)
        self.worker = Worker(node=0, incarnation=1, policy=rules, ledger=books, directory=DIRECTORY)
        self.now_us = 0

    def ask(self, number: int, tokens: np.ndarray[Any, np.dtype[np.uint32]], names: str) -> None:
        """The prompt is computed; its blocks have these names, one letter each."""
        from kvshare_research.driver.jobs import computed

        hashes = b"".join(name.encode().ljust(16) for name in names)
        chain = Chain(hashes=hashes, scope_ends=((0, len(names)),), block_tokens=BLOCK_TOKENS)
        request = Request(
            request_id=number, tenant_id=1, segments=(Segment(scope_id=0, token_count=len(tokens)),),
            output_tokens_max=1, ingress=0, arrival_us=0,
        )  # fmt: skip
        plan = Plan(
            request_id=number, action=Action.RESIDENT, executor=0, resident_blocks=0, front_blocks=0, pieces=(),
            quoted_ttft_us=0,
        )  # fmt: skip
        events: list[Any] = [m.Dispatched(request=request, chain=chain, plan=plan, reader=Reader(1, 0, 0))]
        while events:
            self.now_us += 1
            for effect in self.worker.handle(events.pop(0), self.now_us):
                if isinstance(effect, m.Prefill):
                    events.append(computed(self.engine, effect, tokens, 0))


def test_attention_is_counted_on_blocks_and_heavy_hitters_stay() -> None:
    alone = Alone(H2oRetention(recent_us=0), 7)
    draw = np.random.default_rng(5)
    for number, name in enumerate("uvw"):
        alone.ask(number, draw.integers(0, 256, BLOCK_TOKENS + 1, dtype=np.uint32), name)
    named = {b.block_hash.decode().strip(): b for b in alone.worker.ledger.named() if b.block_hash}
    assert all(0 < block.attention <= 3 for block in named.values()), "three rows looked at one block and a tail"
    by_mass = sorted(named, key=lambda name: named[name].attention)
    assert len({named[name].attention for name in named}) == 3
    alone.ask(9, draw.integers(0, 256, 5 * BLOCK_TOKENS + 1, dtype=np.uint32), "klmno")
    left = {b.block_hash.decode().strip() for b in alone.worker.ledger.named() if b.block_hash}
    assert left & set("uvw") == {by_mass[-1]}


def test_attention_adds_up_over_requests() -> None:
    alone = Alone(H2oRetention(recent_us=0), 7)
    prefix = np.random.default_rng(6).integers(0, 256, BLOCK_TOKENS, dtype=np.uint32)
    masses = []
    for number in range(3):
        alone.ask(number, np.append(prefix, np.uint32(number)), "p")
        masses.append(alone.worker.ledger.named()[0].attention)
    assert masses == sorted(masses)
    assert masses[2] > masses[1] > masses[0] > 0


# ------------------------------------------------------------------ what nobody can tell
@pytest.mark.parametrize("name", NAMES)
def test_what_a_policy_needs_and_nobody_tells_is_refused(name: str) -> None:
    config = {
        "retention": OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml")),
        "engine": {"attention_rows": 0},
    }
    refused = {True: name == "h2o", False: name in ("h2o", "belady")}
    for simulated, refuses in refused.items():
        if refuses:
            with pytest.raises(ConfigError, match="driver=" + ("mpi" if name == "h2o" else "simulator")):
                check_retention(config, simulated=simulated)
        else:
            check_retention(config, simulated=simulated)
    attentive = config | {"engine": {"attention_rows": 8}}
    if name == "h2o":
        check_retention(attentive, simulated=False)


# ------------------------------------------------------------------ quotas bind every policy alike
@pytest.mark.parametrize("fill", [0.10, 0.95])
@pytest.mark.parametrize("name", NAMES)
def test_over_quota_is_one_typed_outcome_at_any_fill(name: str, fill: float) -> None:
    """A prompt larger than its account's limit is refused with the same words, whatever else the pool holds and however
    it is kept; one that fits is served."""
    capacity = 100
    specs = (
        AccountSpec(scope_id=0, reserved_blocks=0, limit_blocks=capacity),
        AccountSpec(scope_id=1, reserved_blocks=0, limit_blocks=8),
        AccountSpec(scope_id=2, reserved_blocks=0, limit_blocks=capacity),
    )
    directory = Directory(**{f: getattr(DIRECTORY, f) for f in ("tenants", "groups", "scopes")}, accounts=specs)
    sim = modelled_fleet(directory, FcfsSchedule(), nodes=1, capacity_blocks=capacity, us_per_token=1, seed=0)
    worker = sim.workers[0]
    worker.ledger = Ledger(capacity_blocks=capacity, accounts=specs, retention=policy(name))
    worker.__init__(node=0, incarnation=1, policy=worker.policy, ledger=worker.ledger, directory=directory)  # type: ignore[misc]

    def ask(number: int, tenant: int, blocks: int) -> SimpleNamespace:
        hashes = b"".join(b"%08d%08d" % (number, i) for i in range(blocks))
        request = Request(
            request_id=number, tenant_id=tenant, segments=(Segment(scope_id=tenant, token_count=16 * blocks),),
            output_tokens_max=1, ingress=0, arrival_us=sim.now_us + 1, executor=0,
        )  # fmt: skip
        sim.inject(request, Chain(hashes=hashes, scope_ends=((tenant, blocks),), block_tokens=16))
        done = next(o for o in sim.run() if o.request_id == number)
        return SimpleNamespace(status=done.status, reason=done.reason)

    filled = 0
    while filled + 5 <= fill * capacity:
        assert ask(100 + filled, 2, 5).status == Status.DONE
        filled += 5
    assert worker.ledger.node.used == pytest.approx(fill * capacity, abs=5)
    over = ask(1, 1, 10)
    assert (over.status, over.reason) == (Status.REJECTED, "QuotaExceeded: scope 1 needs 11 blocks, its limit is 8")
    assert ask(2, 1, 6).status == Status.DONE
    assert Path(CONF / f"{name}.yaml").exists()
    worker.ledger.check()
