"""R18: a store that evicts silently, one that refuses for ever, what headroom repairs; and our accounts beside."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from experiments.one_node import policy
from experiments.table import show
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import AccountSpec

CAPACITY, OBJECT_BLOCKS, WRITES = 1_000, 8, 1_000


@dataclass(slots=True, kw_only=True)
class Store:
    """A tenant's side of a store as reported: a quota, and eviction of the oldest when a watermark is passed.

    `of_quota`: the watermark is the tenant's and counts the object to come, so that it evicts before it refuses;
    otherwise it is the pool's. `headroom` is evicted beyond the deficit, as a share of the quota.
    """

    share: float
    watermark: float
    headroom: float
    of_quota: bool = False
    used: int = 0
    rejected: int = 0
    evicted: int = 0
    passes: int = 0

    def write_all(self) -> Store:
        """All writes, one after the other."""
        held: deque[int] = deque()
        quota = int(self.share * CAPACITY)
        for _ in range(WRITES):
            line = self.watermark * (quota if self.of_quota else CAPACITY)
            coming = self.used + OBJECT_BLOCKS if self.of_quota else self.used
            if coming > line:
                self.passes += 1
                goal = line - self.headroom * quota
                while held and coming > goal:
                    coming -= held[0]
                    self.used -= held.popleft()
                    self.evicted += 1
            if self.used + OBJECT_BLOCKS > quota:
                self.rejected += 1
                continue
            held.append(OBJECT_BLOCKS)
            self.used += OBJECT_BLOCKS
        return self


def ours(limit_blocks: int) -> tuple[int, int, int]:
    """(refused writes, blocks that left, blocks told to have left) of as many writes to an account of the ledger."""
    spec = AccountSpec(scope_id=0, reserved_blocks=0, limit_blocks=limit_blocks)
    ledger = Ledger(capacity_blocks=CAPACITY, accounts=(spec,), retention=policy("lru"))
    refused = told = 0
    for number in range(WRITES):
        taken, evicted = ledger.allocate(0, OBJECT_BLOCKS, number)
        told += len(evicted)
        if taken is None:
            refused += 1
            continue
        for i, block in enumerate(taken):
            ledger.name(block, b"%08d%08d" % (number, i), None, 0, number)
        ledger.drop_all(taken)
    ledger.check()
    stored = (WRITES - refused) * OBJECT_BLOCKS
    return refused, stored - ledger.node.used, told


def typed(fill: float) -> str:
    """What an account at its limit of a tenth of the pool hears of a write larger than that, at this fill of others."""
    specs = (
        AccountSpec(scope_id=0, reserved_blocks=0, limit_blocks=CAPACITY),
        AccountSpec(scope_id=1, reserved_blocks=0, limit_blocks=CAPACITY // 10),
    )
    ledger = Ledger(capacity_blocks=CAPACITY, accounts=specs, retention=policy("lru"))
    ledger.allocate(0, int(fill * CAPACITY), 0)
    return ledger.fits_ever({1: CAPACITY // 10 + 1}) or ""


def run() -> dict[str, float]:
    """Counts of `WRITES` writes, four times as many blocks as the pool has and more."""
    silent = Store(share=1.0, watermark=0.95, headroom=0.05).write_all()
    stuck = Store(share=0.9, watermark=0.9, headroom=0.05).write_all()
    treadmill = Store(share=0.9, watermark=0.9, headroom=0.0, of_quota=True).write_all()
    repaired = Store(share=0.9, watermark=0.9, headroom=0.05, of_quota=True).write_all()
    refused, gone, told = ours(int(0.9 * CAPACITY))
    return {
        "share 100 %: writes refused": silent.rejected,
        "share 100 %: objects evicted and nobody told": silent.evicted,
        "share 90 %, watermark .90: refused of writes over quota": stuck.rejected
        / (WRITES - stuck.used // OBJECT_BLOCKS),
        "share 90 %, watermark .90: objects evicted": stuck.evicted,
        "deficit only: eviction passes per write over quota": treadmill.passes
        / (WRITES - treadmill.used // OBJECT_BLOCKS),
        "with headroom: eviction passes per write over quota": repaired.passes
        / (WRITES - repaired.used // OBJECT_BLOCKS),
        "with headroom: writes refused": repaired.rejected,
        "our accounts: writes refused": refused,
        "our accounts: evicted blocks that are told, of all": told / gone,
        "our accounts: one typed refusal at 10 % and at 95 % fill": float(
            typed(0.10) == typed(0.95) == "QuotaExceeded: scope 1 needs 101 blocks, its limit is 100"
        ),
    }


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
