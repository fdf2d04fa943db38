"""What the ledger does to many blocks at once, it would have done to them one by one."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core.ledger import Block, Ledger
from kvshare_research.core.nouns import AccountSpec
from kvshare_research.core.ports import Retention
from kvshare_research.retention.fair_floors import FairFloorsRetention
from kvshare_research.retention.gdsf import GdsfRetention
from kvshare_research.retention.lru import LruRetention

SCOPES, CAPACITY = range(3), 9
POLICIES: list[Callable[[], Retention]] = [
    LruRetention, FairFloorsRetention, lambda: GdsfRetention(worth=10.0, depth_ratio=0.1),
]  # fmt: skip
# (what, account or place in a tree, how many, where in what is held)
ASKED = ["allocate", "allocate", "name", "name", "name", "drop", "drop", "pin"]
STEPS = st.lists(
    st.tuples(st.sampled_from(ASKED), st.integers(0, 11), st.integers(1, 5), st.integers(0, 3)),
    min_size=20,
    max_size=50,
)
# Account 0 has all of the pool, unpinned, and may pin a third of it: two accounts have floors.
FILLED = [step for which in (0, 2, 9) for step in (("allocate", 0, 3, 0), ("name", which, 3, 0), ("drop", 0, 1, 0))]


def place(path: tuple[int, int]) -> bytes:
    """Block `path[1]` of chain `path[0]`; chains in pairs have their first two blocks in common."""
    chain, depth = path
    return b"%08d%08d" % (chain // 2 if depth < 2 else chain, depth)


def name(ledger: Ledger, blocks: list[Block], chain: int, depth: int, now_us: int, at_once: bool) -> int:
    """The blocks have their places in the chain, from `depth` on; how many got one."""
    hashes = [place((chain, depth + i)) for i in range(len(blocks))]
    parents = [place((chain, depth - 1)) if depth else None, *hashes]
    if at_once:
        return ledger.name_run(blocks, hashes, [b""] * len(blocks), parents[0], depth, now_us)
    for i, block in enumerate(blocks):
        if not ledger.name(block, hashes[i], parents[i], depth + i, now_us):
            return i
    return len(blocks)


def play(steps: list[tuple[str, int, int, int]], retention: Retention, at_once: bool) -> list[object]:
    """All that can be seen of a ledger after each step."""
    specs = [AccountSpec(scope_id=s, reserved_blocks=2 * s, limit_blocks=CAPACITY, priority=s // 2) for s in SCOPES]
    ledger = Ledger(capacity_blocks=CAPACITY, accounts=specs, retention=retention)
    held: list[list[Block]] = []
    seen: list[object] = []
    for now_us, (what, which, count, at) in enumerate(steps):
        mine = held[at % len(held)] if held else []
        if what == "allocate":
            taken, evicted = ledger.allocate(which % len(SCOPES), count, now_us)
            held += [list(taken)] if taken else []
            seen.append([block.block_hash for block in evicted])
        elif what == "name":
            unnamed = [block for block in mine if block.block_hash is None][:count]
            seen.append(name(ledger, unnamed, which % 4, which // 4, now_us, at_once))
        elif what == "drop" and mine:
            held.remove(mine)
            for part in [mine] if at_once else [[block] for block in mine]:
                ledger.drop_all(part)
        elif what == "pin":
            wanted = [block for block in ledger.named() if at % 4 in (3, block.scope_id)]
            got = ledger.pin_first(wanted) if at_once else next(
                (i for i, block in enumerate(wanted) if not ledger.pin(block)), len(wanted)
            )  # fmt: skip
            held += [list(wanted[:got])] if got else []
        ledger.check()
        rows = [(b.slot, b.scope_id, b.block_hash, b.parent, b.depth, b.pins, b.stored_us) for b in ledger.named()]
        seen.append((rows, ledger.node, dict(ledger.accounts), ledger.free_blocks, ledger.evicted_blocks))
    return seen


@given(steps=STEPS, policy=st.sampled_from(POLICIES))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_runs_of_blocks_are_named_pinned_and_dropped_as_one_by_one(
    steps: list[tuple[str, int, int, int]], policy: Callable[[], Retention]
) -> None:
    assert play(FILLED + steps, policy(), at_once=True) == play(FILLED + steps, policy(), at_once=False)
