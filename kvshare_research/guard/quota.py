"""Quotas as written, in bytes, become quotas as kept, in blocks; floors that do not fit are refused or scaled.

The unit is the block because guarantees cannot be kept in bytes of mixed sizes: free space would be there and unusable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import AccountSpec

Oversubscribed = Literal["refuse", "scale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A floor that was lowered so that all fit."""

    scope_id: int
    asked_blocks: int
    given_blocks: int


def blocks_of(
    reserved_bytes: int, limit_bytes: int | None, *, block_bytes: int, capacity_blocks: int, name: str
) -> tuple[int, int]:
    """(reserved, limit) in blocks: the floor is rounded up, the limit down and to the capacity; None is the capacity.

    Raises ConfigError when the limit cannot hold the floor.
    """
    reserved = -(-reserved_bytes // block_bytes)
    limit = capacity_blocks if limit_bytes is None else limit_bytes // block_bytes
    if reserved > limit:
        raise ConfigError(
            f"account of `{name}`: the floor of {reserved_bytes} bytes needs {reserved} blocks of {block_bytes} bytes, "
            f"its limit holds {limit}; raise `limit_bytes` or lower `reserved_bytes`"
        )
    return reserved, limit


def fitted(
    accounts: Sequence[AccountSpec], capacity_blocks: int, *, oversubscribed: Oversubscribed = "refuse"
) -> tuple[tuple[AccountSpec, ...], tuple[Scaled, ...]]:
    """The accounts with floors that fit the capacity together, and which were lowered.

    `refuse` raises ConfigError when they do not fit; `scale` lowers all in proportion, rounding down, so that nobody is
    promised what another is promised too.
    """
    asked = sum(a.reserved_blocks for a in accounts)
    if asked <= capacity_blocks:
        return tuple(accounts), ()
    if oversubscribed == "refuse":
        raise ConfigError(
            f"the floors of all accounts come to {asked} blocks, more than the pool of {capacity_blocks}; "
            "lower `reserved_bytes`, enlarge the pool, or set `oversubscribed: scale`"
        )
    lowered = tuple(replace(a, reserved_blocks=a.reserved_blocks * capacity_blocks // asked) for a in accounts)
    changes = tuple(
        Scaled(scope_id=old.scope_id, asked_blocks=old.reserved_blocks, given_blocks=new.reserved_blocks)
        for old, new in zip(accounts, lowered, strict=True)
        if old.reserved_blocks != new.reserved_blocks
    )
    return lowered, changes
