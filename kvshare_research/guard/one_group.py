"""one_group: everybody shares everything, user text included: a cache without isolation, to measure gain and leak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import AccountSpec, Segment
from kvshare_research.core.ports import Tenancy
from kvshare_research.core.rights import GROUP, TENANT, Scope

from .sharing import one_account_each, with_fallbacks, without_floor


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OneGroup(Tenancy):
    """Every segment of every member belongs to one group of all; only for tenants that trust each other. Who has left
    it keeps its text to itself."""

    group: str = "everybody"

    def scopes(
        self, request_tenant: int, segments: Sequence[Segment], directory: Directory, now_us: int, user_id: int
    ) -> tuple[int, ...]:
        scope = self._scope(directory)
        if not directory.belongs(request_tenant, scope, now_us):
            scope = Scope(TENANT, request_tenant)
        return (directory.scope_id(scope),) * len(segments)

    def directory(self, base: Directory) -> Directory:
        found = base if self.group in base.groups else replace(base, groups=(*base.groups, self.group))
        scope = self._scope(found)
        for tenant_id in range(1, len(found.tenants) + 1):
            if not found.membership(tenant_id, scope).active:
                found = found.granted(tenant_id, scope.party)
        return with_fallbacks(found).with_scopes([scope])

    def accounts(self, directory: Directory, capacity_blocks: int) -> tuple[AccountSpec, ...]:
        """One account without a floor for the group; floors of scopes that nobody uses would only bind blocks."""
        return tuple(map(without_floor, one_account_each(directory, capacity_blocks)))

    def _scope(self, directory: Directory) -> Scope:
        return Scope(GROUP, directory.group_id(self.group))
