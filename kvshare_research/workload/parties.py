"""Reading the party table: every key and name is known and every number makes sense, or a ConfigError says what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvshare_research.core.directory import FOREVER_US, NO_MEMBERSHIP, Directory
from kvshare_research.core.errors import ConfigError, did_you_mean
from kvshare_research.core.rights import GROUP, NOBODY, PUBLIC, TENANT, USER, Membership, Scope, grant, tightens
from kvshare_research.guard.quota import Oversubscribed
from kvshare_research.workload.catalogue import LAYERS, AccountBytes, Catalogue, LayerScope, Template

Table = Mapping[str, Any]
WHOLE_MAX = (1 << 63) - 1  # what messages and tables can carry
_LEVELS = {"public": PUBLIC, "tenant": TENANT, "user": USER}


def load_parties(table: Table, source: str = "tenants") -> tuple[Directory, Catalogue]:
    """Directory (scopes: public, groups, tenants, users) and catalogue described by `table`.

    `source` names the file in messages. An unknown key or name, an impossible number or a second definition is a
    ConfigError.
    """
    return _Reader(source=source).read(table)


@dataclass(slots=True)
class _Reader:
    source: str
    priorities: dict[str, int] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    tenants: list[str] = field(default_factory=list)
    users: list[tuple[str, int]] = field(default_factory=list)
    memberships: dict[tuple[int, int], Membership] = field(default_factory=dict)

    def read(self, table: Table) -> tuple[Directory, Catalogue]:
        optional = ("priorities", "public", "groups", "oversubscribed")
        top = self.mapping(table, "", required=("tenants", "applications"), optional=optional)
        self.priorities = self.read_priorities(top.get("priorities", {"standard": 0}))
        groups = self.rows(top.get("groups", []), "groups", required=("name",), optional=("account",))
        tenants = self.rows(
            top["tenants"], "tenants", required=("name",), optional=("users", "groups", "account"), at_least=1
        )
        self.groups = [g["name"] for g in groups]
        self.tenants = [t["name"] for t in tenants]
        for index, row in enumerate(tenants):
            self.read_users(row, index + 1)
            self.read_memberships(row, index + 1)
        directory = Directory(
            tenants=tuple(self.tenants),
            groups=tuple(self.groups),
            users=tuple(self.users),
            scopes=self.scopes(),
            memberships=tuple(sorted(self.memberships.items())),
        )
        accounts = self.read_accounts(top.get("public", {}), groups, tenants)
        templates = self.read_templates(top["applications"])
        choices: tuple[Oversubscribed, ...] = ("refuse", "scale")
        chosen = choices[self.known(top.get("oversubscribed", "refuse"), choices, "oversubscribed", "choice")]
        return directory, Catalogue(templates=templates, accounts=accounts, oversubscribed=chosen)

    def scopes(self) -> tuple[Scope, ...]:
        sizes = ((GROUP, len(self.groups)), (TENANT, len(self.tenants)), (USER, len(self.users)))
        parties = tuple(Scope(level, i + 1) for level, size in sizes for i in range(size))
        return (Scope(PUBLIC, NOBODY), *parties)

    # ------------------------------------------------------------------ parties
    def read_priorities(self, value: Any) -> dict[str, int]:
        if not isinstance(value, Mapping) or not value:
            raise self.wrong("priorities", value, "names with a whole number each, 0 the weakest")
        return {str(name): self.whole(number, f"priorities.{name}") for name, number in value.items()}

    def read_users(self, row: Table, tenant_id: int) -> None:
        where = f"tenants.{row['name']}.users"
        given = row.get("users", 1)
        if isinstance(given, Sequence) and not isinstance(given, str):
            names = [self.name(u, f"{where}.{i}") for i, u in enumerate(given)]
        else:
            names = [f"{row['name']}-{i + 1}" for i in range(self.whole(given, where))]
        if not names:
            raise self.wrong(where, given, "at least one user")
        for name in names:
            if name in (u for u, _ in self.users):
                raise ConfigError(f"{self.source}: user `{name}` is defined twice, second time in `{where}`")
            self.users.append((name, tenant_id))

    def read_memberships(self, row: Table, tenant_id: int) -> None:
        where = f"tenants.{row['name']}.groups"
        for member in self.rows(row.get("groups", []), where, required=("name",), optional=("expiry_us",)):
            group_id = self.known(member["name"], self.groups, where, "group") + 1
            expiry = member.get("expiry_us")
            expiry_us = FOREVER_US if expiry is None else self.whole(expiry, f"{where}.{member['name']}.expiry_us")
            self.memberships[tenant_id, group_id] = grant(NO_MEMBERSHIP, expiry_us)

    # ------------------------------------------------------------------ quotas
    def read_accounts(self, public: Any, groups: list[Table], tenants: list[Table]) -> tuple[AccountBytes, ...]:
        given: list[tuple[str, str, Any]] = [("public", "public", public)]
        given += [(g["name"], f"groups.{g['name']}.account", g.get("account", {})) for g in groups]
        given += [(t["name"], f"tenants.{t['name']}.account", t.get("account", {})) for t in tenants]
        parties = [self.read_account(value, where, i, name) for i, (name, where, value) in enumerate(given)]
        first_tenant = 1 + len(groups)
        users = []
        for i, (name, tenant_id) in enumerate(self.users):
            # A user has no floor of its own and at most the rights of its tenant.
            of = parties[first_tenant + tenant_id - 1]
            scope_id = len(parties) + i
            users.append(
                AccountBytes(
                    scope_id=scope_id, name=name, limit_bytes=of.limit_bytes, priority=of.priority, ttl_us=of.ttl_us
                )
            )
        return (*parties, *users)

    def read_account(self, value: Any, where: str, scope_id: int, name: str) -> AccountBytes:
        row = self.mapping(value, where, optional=("reserved_bytes", "limit_bytes", "priority", "ttl_us"))
        reserved_bytes = self.whole(row.get("reserved_bytes", 0), f"{where}.reserved_bytes")
        limit, ttl = row.get("limit_bytes"), row.get("ttl_us")
        limit_bytes = None if limit is None else self.whole(limit, f"{where}.limit_bytes")
        if limit_bytes is not None and reserved_bytes > limit_bytes:
            raise ConfigError(
                f"{self.source}: `{where}.reserved_bytes` is {reserved_bytes}, above its `limit_bytes` of {limit_bytes}"
            )
        names = list(self.priorities)
        weakest = min(names, key=self.priorities.__getitem__)
        chosen = names[self.known(row.get("priority", weakest), names, f"{where}.priority", "priority")]
        return AccountBytes(
            scope_id=scope_id,
            name=name,
            reserved_bytes=reserved_bytes,
            limit_bytes=limit_bytes,
            priority=self.priorities[chosen],
            ttl_us=None if ttl is None else self.whole(ttl, f"{where}.ttl_us"),
        )

    # ------------------------------------------------------------------ templates
    def read_templates(self, value: Any) -> tuple[Template, ...]:
        rows = self.rows(value, "applications", required=("name", *LAYERS), optional=("tenants",), at_least=1)
        return tuple(self.read_template(row) for row in rows)

    def read_template(self, row: Table) -> Template:
        where = f"applications.{row['name']}"
        users = row.get("tenants", self.tenants)
        if isinstance(users, str) or not isinstance(users, Sequence) or not users:
            raise self.wrong(f"{where}.tenants", users, "a list with at least one tenant")
        tenant_ids = tuple(self.known(t, self.tenants, f"{where}.tenants", "tenant") + 1 for t in users)
        if len(set(tenant_ids)) < len(tenant_ids):
            raise self.wrong(f"{where}.tenants", list(users), "every tenant once")
        layers = {name: self.read_layer(row[name], f"{where}.{name}") for name in LAYERS}
        self.check_tightening(layers, where)
        for name, layer in layers.items():
            self.check_members(layer, tenant_ids, f"{where}.{name}")
        return Template(application=row["name"], tenant_ids=tenant_ids, **layers)

    def read_layer(self, value: Any, where: str) -> LayerScope:
        word, _, group = str(value).partition(":")
        if word == "group" and group:
            return LayerScope(level=GROUP, group_id=self.known(group, self.groups, where, "group") + 1)
        if str(value) in _LEVELS:
            return LayerScope(level=_LEVELS[str(value)])
        near = did_you_mean(str(value), [*_LEVELS, *(f"group:{g}" for g in self.groups)])
        raise ConfigError(f"{self.source}: `{where}` is `{value}`, expected public, group:NAME, tenant or user{near}")

    def check_tightening(self, layers: Mapping[str, LayerScope], where: str) -> None:
        chain = [layer.scope(tenant_id=1, user_id=1) for layer in layers.values()]
        for i in (0, 1):
            if not tightens(chain[i], chain[i + 1]):
                raise ConfigError(
                    f"{self.source}: `{where}.{LAYERS[i + 1]}` widens the scope of `{LAYERS[i]}` before it, expected "
                    "the same scope or a tighter level (public, group, tenant, user)"
                )

    def check_members(self, layer: LayerScope, tenant_ids: Iterable[int], where: str) -> None:
        for tenant_id in tenant_ids:
            if layer.level == GROUP and (tenant_id, layer.group_id) not in self.memberships:
                raise ConfigError(
                    f"{self.source}: `{where}` belongs to group `{self.groups[layer.group_id - 1]}`, but tenant "
                    f"`{self.tenants[tenant_id - 1]}`, who uses the application, is no member of it"
                )

    # ------------------------------------------------------------------ shapes
    def mapping(self, value: Any, where: str, required: Sequence[str] = (), optional: Sequence[str] = ()) -> Table:
        if not isinstance(value, Mapping):
            raise self.wrong(where or "the table", value, f"a mapping with {', '.join((*required, *optional))}")
        for key in value:
            if key not in (*required, *optional):
                near = did_you_mean(str(key), (*required, *optional))
                raise ConfigError(f"{self.source}: unknown key `{f'{where}.{key}'.lstrip('.')}`{near}")
        for key in required:
            if key not in value:
                raise ConfigError(f"{self.source}: `{f'{where}.{key}'.lstrip('.')}` is missing")
        return value

    def rows(
        self, value: Any, where: str, required: Sequence[str], optional: Sequence[str], at_least: int = 0
    ) -> list[Table]:
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) < at_least:
            raise self.wrong(where, value, f"a list of rows with {', '.join((*required, *optional))}")
        rows = [self.mapping(row, f"{where}.{i}", required, optional) for i, row in enumerate(value)]
        names = [row["name"] for row in rows]
        for i, name in enumerate(names):
            self.name(name, f"{where}.{i}.name")
            if name in names[:i]:
                raise ConfigError(
                    f"{self.source}: `{name}` is defined twice in `{where}`, rows {names.index(name)} and {i}"
                )
        return rows

    def known(self, name: Any, names: Sequence[str], where: str, kind: str) -> int:
        if str(name) not in names:
            raise ConfigError(f"{self.source}: `{where}` names unknown {kind} `{name}`{did_you_mean(str(name), names)}")
        return list(names).index(str(name))

    def name(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(where, value, "a name")
        if not value.isprintable():
            raise self.wrong(where, value, "a name without control characters")
        return value

    def whole(self, value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(where, value, "a whole number, 0 or more")
        if value > WHOLE_MAX:
            raise self.wrong(where, value, "a whole number of at most 63 bits")
        return value

    def wrong(self, where: str, value: Any, expected: str) -> ConfigError:
        shown = ascii(value)[1:-1] if isinstance(value, str) and not value.isprintable() else value
        return ConfigError(f"{self.source}: `{where}` is `{shown}`, expected {expected}")
