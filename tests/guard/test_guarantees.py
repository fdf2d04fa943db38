"""What the theorems promise about accounts holds in the ledger that applies them: floors are attained, nothing waits for ever."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core.account import floor_of
from kvshare_research.core.ledger import Block, Ledger
from kvshare_research.core.nouns import AccountSpec
from kvshare_research.retention.lru import LruRetention


def ledger_of(capacity: int, *rows: tuple[int, int, int]) -> Ledger:
    """Accounts of scopes 0, 1, ... as (reserved, limit, priority)."""
    specs = [
        AccountSpec(scope_id=i, reserved_blocks=r, limit_blocks=limit, priority=p)
        for i, (r, limit, p) in enumerate(rows)
    ]
    return Ledger(capacity_blocks=capacity, accounts=specs, retention=LruRetention())


def put(ledger: Ledger, scope_id: int, block_hash: bytes, parent: bytes | None, depth: int) -> Block:
    taken, _ = ledger.allocate(scope_id, 1, 0)
    assert taken is not None
    assert ledger.name(taken[0], block_hash, parent, depth, 0)
    return taken[0]


def test_a_floor_is_attained_although_the_borrower_holds_only_a_root() -> None:
    """The public root has a child of a tenant that is within its floor: the root goes, and the child becomes an orphan."""
    ledger = ledger_of(2, (0, 2, 0), (0, 2, 0), (0, 2, 0))
    root, child = put(ledger, 0, b"root", None, 0), put(ledger, 1, b"child", b"root", 1)
    ledger.drop(root)
    ledger.drop(child)
    for scope_id in (1, 2):
        assert ledger.configure(AccountSpec(scope_id=scope_id, reserved_blocks=1, limit_blocks=2))

    taken, evicted = ledger.allocate(2, 1, 1)

    assert taken is not None, "theorem I6: an account below its floor always gets a block"
    assert [e.block_hash for e in evicted] == [b"root"]
    ledger.check()


def test_a_floor_is_attained_although_the_leaf_of_the_borrower_is_pinned() -> None:
    ledger = ledger_of(3, (0, 3, 0), (1, 3, 0))
    blocks = []
    for depth, (name, parent) in enumerate(((b"root", None), (b"inner", b"root"), (b"leaf", b"inner"))):
        blocks.append(put(ledger, 0, name, parent, depth))
        ledger.drop(blocks[-1])
    assert ledger.pin(blocks[2])
    taken, evicted = ledger.allocate(1, 1, 1)
    assert taken is not None
    assert [e.block_hash for e in evicted] in ([b"root"], [b"inner"])
    assert ledger.find(b"leaf", 1) is not None
    ledger.check()


def test_a_request_that_can_never_run_beside_the_floors_is_refused_and_does_not_wait() -> None:
    ledger = ledger_of(4, (0, 4, 0), (3, 4, 0))
    refusal = ledger.fits_ever({0: 2})
    assert refusal is not None
    assert refusal.startswith("QuotaExceeded")
    assert ledger.allocate(0, 2, 0)[0] is None
    assert ledger.fits_ever({0: 1}) is None
    assert ledger.allocate(0, 1, 0)[0] is not None


ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 8), st.integers(0, 2)).map(lambda r: (r[0], r[0] + r[1], r[2])),
    min_size=2,
    max_size=4,
)


@given(rows=ROWS, spare=st.integers(0, 5), moves=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=25))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_floors_are_attained_from_any_state(
    rows: list[tuple[int, int, int]], spare: int, moves: list[tuple[int, int]]
) -> None:
    """Chains of all accounts, some pinned, then: whoever is below its floor gets a block, and is refused only if the
    block would be pinned beyond its limit."""
    ledger = ledger_of(sum(r[0] for r in rows) + spare, *rows)
    held: list[Block] = []
    parent: bytes | None = None
    for i, (scope_id, what) in enumerate(moves):
        if scope_id >= len(rows):
            continue
        taken, _ = ledger.allocate(scope_id, 1, i)
        if taken is None:
            continue
        block_hash = b"%04d" % i
        ledger.name(taken[0], block_hash, parent, i, i)
        parent = None if what == 0 else block_hash
        if what == 1:
            held.append(taken[0])
        else:
            ledger.drop(taken[0])
    ledger.check()
    for scope_id in range(len(rows)):
        account = ledger.accounts[scope_id]
        if account.used < account.reserved:
            taken, _ = ledger.allocate(scope_id, 1, 99)
            assert taken is not None, (scope_id, account, ledger.node, [floor_of(a) for a in ledger.accounts.values()])
            ledger.check()
            held.extend(taken)
    for block in held:
        assert ledger.block(block.slot) is block


@given(rows=ROWS, spare=st.integers(0, 5), need=st.dictionaries(st.integers(0, 3), st.integers(1, 6), min_size=1))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_what_fits_ever_fits_an_idle_node(rows: list[tuple[int, int, int]], spare: int, need: dict[int, int]) -> None:
    """`fits_ever` is exact: on a node where nothing runs it says yes exactly when the blocks can be had."""
    need = {s: n for s, n in need.items() if s < len(rows)}
    ledger = ledger_of(sum(r[0] for r in rows) + spare, *rows)
    verdict = ledger.fits_ever(need)
    got = all(ledger.allocate(s, n, 0)[0] is not None for s, n in sorted(need.items()))
    assert (verdict is None) == got, verdict
