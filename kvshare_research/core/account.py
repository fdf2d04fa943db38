"""Who may keep a block: the quota rules of one node, as small total functions on frozen rows.

Capacity is counted in uniform blocks. Class-0 accounts may borrow idle reservations, since anybody may
take such a block back; what a higher class holds, and what is pinned, cannot be clawed back and therefore
counts as committed beside everybody's reservation (`floor_of`). Every rule takes a count; but for `replace_own` it
equals that many single steps (theorem COUNT in proofs/).
"""

from __future__ import annotations

from msgspec import Struct


class Account(Struct, frozen=True, gc=False):
    """Blocks of one scope on one node. A larger `priority` is stronger; 0 may be reclaimed by anybody."""

    used: int
    pinned: int
    reserved: int
    limit: int
    priority: int


class Node(Struct, frozen=True, gc=False):
    """Totals of one node: `committed` is the sum of `floor_of` over its accounts."""

    capacity: int
    used: int
    committed: int


class Step(Struct, frozen=True, gc=False):
    """Rows to store. `ok` False means nothing may change."""

    ok: bool
    node: Node
    account: Account
    victim: Account | None = None


def floor_of(account: Account) -> int:
    """Blocks of the node that nobody of a lower class can claw back from this account."""
    hard = account.used if account.priority > 0 else account.pinned
    return max(hard, account.reserved)


def _rebook(node: Node, old: Account, new: Account) -> Node:
    used = node.used - old.used + new.used
    return Node(node.capacity, used, node.committed - floor_of(old) + floor_of(new))


def replace(account: Account, *, used: int | None = None, pinned: int | None = None) -> Account:
    """The account with the fields that requests move, as `dataclasses.replace` at a fifth of its time."""
    return Account(
        account.used if used is None else used,
        account.pinned if pinned is None else pinned,
        account.reserved,
        account.limit,
        account.priority,
    )


def _sound(node: Node) -> bool:
    return node.used <= node.capacity and node.committed <= node.capacity


def admit(node: Node, account: Account, count: int) -> Step:
    """`account` holds `count` more blocks, if limit, capacity and everybody's floors allow; else refused."""
    grown = replace(account, used=account.used + count)
    after = _rebook(node, account, grown)
    if count >= 0 and grown.used <= account.limit and _sound(after):
        return Step(True, after, grown)
    return Step(False, node, account)


def may_evict(victim: Account, admitter: Account, count: int) -> bool:
    """Whether `count` blocks of `victim` may go so that `admitter`, another account, gets them."""
    return (
        count >= 0
        and victim.used - count >= victim.reserved
        and victim.used - count >= victim.pinned
        and victim.priority <= admitter.priority
    )


def admit_evicting(node: Node, account: Account, victim: Account, count: int) -> Step:
    """`count` blocks change hands from `victim` to `account`, or nothing changes."""
    if not may_evict(victim, account, count):
        return Step(False, node, account, victim)
    shrunk = replace(victim, used=victim.used - count)
    step = admit(_rebook(node, victim, shrunk), account, count)
    if step.ok:
        return Step(True, step.node, step.account, shrunk)
    return Step(False, node, account, victim)


def may_replace_own(account: Account, count: int) -> bool:
    """Whether `account` has `count` unpinned blocks of its own to give up."""
    return 0 <= count <= account.used - account.pinned


def release(node: Node, account: Account, count: int) -> Step:
    """`count` unpinned blocks leave: evicted by their own account, expired, invalidated or moved away."""
    if may_replace_own(account, count):
        shrunk = replace(account, used=account.used - count)
        return Step(True, _rebook(node, account, shrunk), shrunk)
    return Step(False, node, account)


def replace_own(node: Node, account: Account, count: int) -> Step:
    """`count` unpinned blocks of the account make way for as many new ones of its own."""
    step = release(node, account, count)
    return admit(step.node, step.account, count) if step.ok else step


def pin(node: Node, account: Account, count: int) -> Step:
    """`count` more blocks become unreclaimable; may be refused, since a pin is an admission."""
    pinned = replace(account, pinned=account.pinned + count)
    after = _rebook(node, account, pinned)
    if count >= 0 and pinned.pinned <= account.used and _sound(after):
        return Step(True, after, pinned)
    return Step(False, node, account)


def unpin(node: Node, account: Account, count: int) -> Step:
    """`count` pins end."""
    if 0 <= count <= account.pinned:
        freed = replace(account, pinned=account.pinned - count)
        return Step(True, _rebook(node, account, freed), freed)
    return Step(False, node, account)


def configure(node: Node, account: Account, reserved: int, limit: int, priority: int) -> Step:
    """The account has a new quota and class, if what it holds and everybody's floors still fit."""
    new = Account(account.used, account.pinned, reserved, limit, priority)
    after = _rebook(node, account, new)
    if 0 <= reserved <= limit and account.used <= limit and priority >= 0 and _sound(after):
        return Step(True, after, new)
    return Step(False, node, account)


def remove(node: Node, account: Account) -> Step:
    """The account and its blocks are gone; refused while anything is pinned."""
    if account.pinned == 0:
        gone = Account(0, 0, 0, 0, 0)
        return Step(True, _rebook(node, account, gone), gone)
    return Step(False, node, account)
