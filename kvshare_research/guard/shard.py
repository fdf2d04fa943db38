"""shard: each tenant has its own equal part of the pool and shares nothing: the strict partition to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import AccountSpec, Segment
from kvshare_research.core.ports import Tenancy
from kvshare_research.core.rights import NONE, TENANT, Scope

from .sharing import with_fallbacks


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(Tenancy):
    """Every segment has its tenant's scope; floor = limit = an equal share of the capacity."""

    def scopes(
        self, request_tenant: int, segments: Sequence[Segment], directory: Directory, now_us: int, user_id: int
    ) -> tuple[int, ...]:
        """Raises ConfigError for a segment tighter than a tenant, which a partition by tenant would widen."""
        if any(TENANT < directory.scopes[segment.scope_id].level < NONE for segment in segments):
            raise ConfigError("tenancy `shard` knows tenants only, a prompt has user or session scopes; use `layered`")
        return (directory.scope_id(Scope(TENANT, request_tenant)),) * len(segments)

    def directory(self, base: Directory) -> Directory:
        return with_fallbacks(base)

    def accounts(self, directory: Directory, capacity_blocks: int) -> tuple[AccountSpec, ...]:
        share = capacity_blocks // max(1, len(directory.tenants))
        blocks = [share if scope.level == TENANT else 0 for scope in directory.scopes]
        return tuple(AccountSpec(scope_id=i, reserved_blocks=b, limit_blocks=b) for i, b in enumerate(blocks))
