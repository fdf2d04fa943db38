"""The directory of parties: tenants, users, groups, scopes and memberships. Pure tables; rules are in `rights.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from msgspec import structs

from .errors import ConfigError
from .nouns import AccountSpec
from .rights import EVERYBODY, GROUP, NOBODY, PUBLIC, TENANT, USER, Membership, Reader, Scope, grant, may_read, revoke

NO_MEMBERSHIP = Membership(False, 0, 0)
FOREVER_US = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """Names by id, scopes by scope id, memberships by (tenant, group). Changing it gives a new value.

    Party ids are unique per level and start at 1: `tenants[i]` has id i + 1. Scope 0 is public.
    `revision` rises with every change, so that workers can acknowledge what they have applied.
    """

    tenants: tuple[str, ...]
    groups: tuple[str, ...]
    users: tuple[tuple[str, int], ...] = ()  # (name, tenant id)
    scopes: tuple[Scope, ...] = (EVERYBODY,)
    memberships: tuple[tuple[tuple[int, int], Membership], ...] = ()
    accounts: tuple[AccountSpec, ...] = ()
    removed: frozenset[int] = frozenset()  # ids of tenants that are gone; their ids are never given again
    revision: int = 0
    _rows: dict[tuple[int, int], Membership] = field(init=False, repr=False, compare=False)
    _scope_ids: dict[Scope, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ConfigError for a name given twice: hashes go by names, and two parties would share one."""
        for kind, names in (("tenant", self.tenants), ("group", self.groups), ("user", self.users)):
            if len(set(names)) < len(names):
                twice = next(name for name, count in Counter(names).items() if count > 1)
                raise ConfigError(f"{kind} `{twice}` is in the directory twice, expected every name once")
        object.__setattr__(self, "_rows", dict(self.memberships))
        object.__setattr__(self, "_scope_ids", {scope: i for i, scope in enumerate(self.scopes)})

    def tenant_id(self, name: str) -> int:
        return self.tenants.index(name) + 1

    def group_id(self, name: str) -> int:
        return self.groups.index(name) + 1

    def scope_id(self, scope: Scope) -> int:
        """The id of a scope of this directory; raises KeyError for others."""
        return self._scope_ids[scope]

    def with_scopes(self, scopes: Iterable[Scope]) -> Directory:
        """This directory with `scopes` in it; ids given before stay, and nothing changes if all are known."""
        new = tuple(s for s in dict.fromkeys(scopes) if s not in self._scope_ids)
        return replace(self, scopes=self.scopes + new, revision=self.revision + 1) if new else self

    def belongs(self, tenant_id: int, scope: Scope, now_us: int) -> bool:
        """Whether the tenant is a party to `scope` now: to a group, while it may read the group's blocks."""
        if scope.level == PUBLIC:
            return True
        if scope.party == NOBODY or tenant_id in self.removed:
            return False
        if scope.level == GROUP:
            return may_read(scope, Reader(tenant_id, 0, 0), self._row(tenant_id, scope.party), now_us)
        if scope.level == TENANT:
            return scope.party == tenant_id
        return scope.level != USER or self.users[scope.party - 1][1] == tenant_id

    def expires(self) -> bool:
        """Whether some membership ends by itself, so that what a prompt is hashed to depends on when it arrives."""
        return any(row.active and row.expiry_us < FOREVER_US for _, row in self.memberships)

    def membership(self, tenant_id: int, scope: Scope) -> Membership:
        """The row that `may_read` needs for this scope; a dummy row where the scope is no group."""
        if scope.level != GROUP:
            return NO_MEMBERSHIP
        return self._rows.get((tenant_id, scope.party), NO_MEMBERSHIP)

    def may_read(self, reader: Reader, scope_id: int, now_us: int) -> bool:
        """Whether the reader may read what is in this scope now."""
        scope = self.scopes[scope_id]
        return may_read(scope, reader, self.membership(reader.tenant, scope), now_us)

    def reader(self, tenant_id: int, user_id: int = 0, session_id: int = 0) -> Reader:
        return Reader(tenant_id, user_id, session_id)

    def without_tenant(self, tenant_id: int) -> Directory:
        """The directory after the tenant is gone: in no group, without floors, all its own scopes closed."""
        out = replace(self, removed=self.removed | {tenant_id})
        for group_id in range(1, len(self.groups) + 1):
            if self._row(tenant_id, group_id).active:
                out = out.revoked(tenant_id, group_id)
        closed = out.closed_scopes()
        accounts = tuple(structs.replace(a, reserved_blocks=0) if a.scope_id in closed else a for a in self.accounts)
        return replace(out, accounts=accounts, revision=out.revision + 1)

    def closed_scopes(self) -> frozenset[int]:
        """Ids of the scopes of removed tenants and of their users: what is held in them has to go."""
        mine = {TENANT: self.removed, USER: {i + 1 for i, (_, t) in enumerate(self.users) if t in self.removed}}
        return frozenset(i for i, s in enumerate(self.scopes) if s.party in mine.get(s.level, ()))

    def granted(self, tenant_id: int, group_id: int, expiry_us: int = FOREVER_US) -> Directory:
        return self._with_row(tenant_id, group_id, grant(self._row(tenant_id, group_id), expiry_us))

    def revoked(self, tenant_id: int, group_id: int) -> Directory:
        return self._with_row(tenant_id, group_id, revoke(self._row(tenant_id, group_id)))

    def _row(self, tenant_id: int, group_id: int) -> Membership:
        return self._rows.get((tenant_id, group_id), NO_MEMBERSHIP)

    def _with_row(self, tenant_id: int, group_id: int, row: Membership) -> Directory:
        rows = dict(self._rows)
        rows[tenant_id, group_id] = row
        return replace(self, memberships=tuple(sorted(rows.items())), revision=self.revision + 1)
