"""per_user: every user has a salt, so nothing is shared, the tenant's own system prompt included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import AccountSpec, Segment
from kvshare_research.core.ports import Tenancy
from kvshare_research.core.rights import TENANT, USER, Scope

from .sharing import one_account_each, tightened, with_fallbacks


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PerUser(Tenancy):
    """Every segment has the scope of the user who asks, or of the session the catalogue asks for; of a request that
    names no user of its tenant, the tenant's."""

    def scopes(
        self, request_tenant: int, segments: Sequence[Segment], directory: Directory, now_us: int, user_id: int
    ) -> tuple[int, ...]:
        known = 1 <= user_id <= len(directory.users) and directory.users[user_id - 1][1] == request_tenant
        start = Scope(USER, user_id) if known else Scope(TENANT, request_tenant)
        return tightened(request_tenant, start, segments, directory, now_us)

    def directory(self, base: Directory) -> Directory:
        return with_fallbacks(base.with_scopes([Scope(USER, i + 1) for i in range(len(base.users))]))

    def accounts(self, directory: Directory, capacity_blocks: int) -> tuple[AccountSpec, ...]:
        return one_account_each(directory, capacity_blocks)
