"""layered: every segment is shared as widely as the operator's template catalogue says, and no wider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import AccountSpec, Segment
from kvshare_research.core.ports import Tenancy
from kvshare_research.core.rights import EVERYBODY

from .sharing import one_account_each, tightened, with_fallbacks


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Layered(Tenancy):
    """The scope lattice: public < group < tenant < user < session, tightening along each prompt."""

    def scopes(
        self, request_tenant: int, segments: Sequence[Segment], directory: Directory, now_us: int, user_id: int
    ) -> tuple[int, ...]:
        return tightened(request_tenant, EVERYBODY, segments, directory, now_us)

    def directory(self, base: Directory) -> Directory:
        return with_fallbacks(base)

    def accounts(self, directory: Directory, capacity_blocks: int) -> tuple[AccountSpec, ...]:
        return one_account_each(directory, capacity_blocks)
