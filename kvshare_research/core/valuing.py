"""What a block is worth keeping: all that a retention policy may know of it, put together, and its word made safe."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import final

from msgspec.structs import replace

from .account import Account
from .ports import BlockView, Retention
from .victims import Block

Future = Mapping[bytes, Sequence[int]]  # when each block will be asked for, by hash: ascending, in us


@final
class Valuing:
    """Asks the policy. Holds what a block's own row does not tell: who waits for it, and how much accounts have stored.

    `levels` are the levels of the scopes, by id. `future` is for an oracle; nothing real has one.
    """

    def __init__(self, retention: Retention, accounts: Mapping[int, Account], recompute_us: int) -> None:
        self.errors = 0
        self.levels: Sequence[int] = ()
        self.future: Future = {}
        self._retention = retention
        self._asks_more = retention.ages or bool(retention.needs)
        self._accounts = accounts
        self._recompute_us = recompute_us
        self._wanted: Counter[bytes] = Counter()
        self._balances: dict[int, tuple[float, int]] = {}  # by scope: blocks, and as of when

    def want(self, hashes: Iterable[bytes], step: int) -> None:
        """`step` (1 or -1) more of the waiting requests want these blocks."""
        for block_hash in hashes:
            self._wanted[block_hash] += step
            if not self._wanted[block_hash]:
                del self._wanted[block_hash]

    def stored(self, scope_id: int, now_us: int) -> None:
        """The account has stored one more new block: its balance is refilled up to now and pays for it."""
        if not self._retention.ages:
            return
        self._balances[scope_id] = (self._balance(scope_id, now_us) - 1, now_us)

    def score(self, block: Block, now_us: int) -> float:
        """The policy's word; one that raises or answers NaN is counted, and time of last use stands in. A block whose
        parent is gone cannot be matched: it is worth nothing.

        Asked at every use of every leaf: what the policy does not look at is not looked up.
        """
        if block.above is None and block.parent is not None:
            return float("-inf")
        scope_id, levels = block.scope_id, self.levels
        view = BlockView(
            block.slot, scope_id, block.depth, block.stored_us, block.used_us, block.use_count, self._recompute_us,
            levels[scope_id] if scope_id < len(levels) else 0,
        )  # fmt: skip
        try:
            score = float(self._retention.score(self._more(view, block, now_us) if self._asks_more else view, now_us))
        except Exception:  # noqa: BLE001 -- a broken policy must never stop eviction
            score = float("nan")
        if score != score:
            self.errors += 1
            return float(block.used_us)
        return score

    def _more(self, view: BlockView, block: Block, now_us: int) -> BlockView:
        account = self._accounts[block.scope_id]
        times: Sequence[int] = self.future.get(block.block_hash, ()) if block.block_hash is not None else ()
        later = bisect_right(times, now_us)
        return replace(
            view,
            account_used=account.used,
            account_reserved=account.reserved,
            balance_blocks=self._balance(block.scope_id, now_us),
            attention=block.attention,
            wanted=self._wanted[block.block_hash] if block.block_hash is not None else 0,
            next_use_us=times[later] if later < len(times) else None,
        )

    def _balance(self, scope_id: int, now_us: int) -> float:
        """What the account may still store; the policy says how it refills. One that stored nothing yet is full."""
        balance, since_us = self._balances.get(scope_id, (float("inf"), now_us))
        try:
            refilled = float(self._retention.refilled(balance, max(0, now_us - since_us)))
        except Exception:  # noqa: BLE001 -- as above
            refilled = float("nan")
        if refilled != refilled:
            self.errors += 1
            return balance
        return refilled
