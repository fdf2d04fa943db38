"""What the tenancies have in common: walking a prompt's scopes, and one account per scope."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import AccountSpec, Segment
from kvshare_research.core.rights import SEALED, TENANT, Scope, assign


def tightened(
    tenant_id: int, start: Scope, segments: Sequence[Segment], directory: Directory, now_us: int
) -> tuple[int, ...]:
    """The scope id of each segment at `now_us` when the text before the prompt has scope `start`; only tightening."""
    scope, ids = start, []
    for segment in segments:
        asked = directory.scopes[segment.scope_id]
        scope = assign(scope, asked, directory.belongs(tenant_id, asked, now_us), tenant_id)
        ids.append(directory.scope_id(scope))
    return tuple(ids)


def with_fallbacks(base: Directory) -> Directory:
    """The directory with every scope that `assign` can fall back to: each tenant's own and, if needed, the sealed."""
    own = [Scope(TENANT, i + 1) for i in range(len(base.tenants))]
    sealed = [SEALED] if any(s.level > TENANT for s in base.scopes) else []
    return base.with_scopes([*own, *sealed])


def one_account_each(directory: Directory, capacity_blocks: int) -> tuple[AccountSpec, ...]:
    """The configured account of each scope; where none is configured, no floor and all the capacity as limit."""
    configured = {a.scope_id: a for a in directory.accounts}
    return tuple(
        configured.get(i, AccountSpec(scope_id=i, reserved_blocks=0, limit_blocks=capacity_blocks))
        for i in range(len(directory.scopes))
    )


def without_floor(account: AccountSpec) -> AccountSpec:
    """The account as a borrower only."""
    return replace(account, reserved_blocks=0)
