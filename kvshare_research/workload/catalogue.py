"""Who is there and who may share what: the operator's party table and template catalogue, read strictly.

`load_parties` turns one mapping (conf/tenants/*.yaml) into a `Directory` and a `Catalogue`. The operator
assigns the scope of every layer of every application here; a client has no say in it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError, did_you_mean
from kvshare_research.core.nouns import AccountSpec
from kvshare_research.core.rights import GROUP, NOBODY, PUBLIC, TENANT, USER, Scope
from kvshare_research.guard.quota import Oversubscribed, blocks_of, fitted

_LOG = logging.getLogger(__name__)
LAYERS = ("system", "few_shot", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerScope:
    """Whose a layer is: a level of the scope chain, and at GROUP which group."""

    level: int
    group_id: int = 0

    def scope(self, *, tenant_id: int, user_id: int) -> Scope:
        """The scope that the layer has in a request of this tenant and user."""
        party = {PUBLIC: NOBODY, GROUP: self.group_id, TENANT: tenant_id, USER: user_id}[self.level]
        return Scope(self.level, party)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One application: who uses it, and whose its three layers are; scopes only tighten from layer to layer."""

    application: str
    tenant_ids: tuple[int, ...]
    system: LayerScope
    few_shot: LayerScope
    user: LayerScope

    def scope_ids(self, directory: Directory, *, tenant_id: int, user_id: int) -> tuple[int, int, int]:
        """Scope ids of system prompt, few-shot examples and user text in a request of this tenant and user."""

        def of(layer: LayerScope) -> int:
            return directory.scope_id(layer.scope(tenant_id=tenant_id, user_id=user_id))

        return of(self.system), of(self.few_shot), of(self.user)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountBytes:
    """The quota of one scope on every node, as the operator wrote it. `limit_bytes` None means the whole pool."""

    scope_id: int
    name: str
    reserved_bytes: int = 0
    limit_bytes: int | None = None
    priority: int = 0
    ttl_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The operator's templates in the order of the file, and the quotas in bytes, one for each scope."""

    templates: tuple[Template, ...]
    accounts: tuple[AccountBytes, ...]
    oversubscribed: Oversubscribed = "refuse"  # what happens to floors that do not fit together

    def template(self, application: str) -> Template:
        """The template of this name, or of the set before its slash; ConfigError names the nearest."""
        for template in self.templates:
            if template.application in (application, application.partition("/")[0]):
                return template
        names = [t.application for t in self.templates]
        raise ConfigError(f"no application `{application}` in the catalogue{did_you_mean(application, names)}")

    def sized(self, directory: Directory, *, block_bytes: int, capacity_blocks: int) -> Directory:
        """The directory with accounts in blocks: reserved rounded up, limit down.

        Floors that do not fit together are a ConfigError, or with `oversubscribed: scale` lowered in proportion and
        reported in the log.
        """
        rows = tuple(_in_blocks(a, block_bytes, capacity_blocks) for a in self.accounts)
        accounts, lowered = fitted(rows, capacity_blocks, oversubscribed=self.oversubscribed)
        for change in lowered:
            name = self.accounts[change.scope_id].name
            _LOG.warning("floor of `%s`: %d blocks instead of %d", name, change.given_blocks, change.asked_blocks)
        return replace(directory, accounts=accounts)


def _in_blocks(account: AccountBytes, block_bytes: int, capacity_blocks: int) -> AccountSpec:
    reserved_blocks, limit_blocks = blocks_of(
        account.reserved_bytes,
        account.limit_bytes,
        block_bytes=block_bytes,
        capacity_blocks=capacity_blocks,
        name=account.name,
    )
    return AccountSpec(
        scope_id=account.scope_id,
        reserved_blocks=reserved_blocks,
        limit_blocks=limit_blocks,
        priority=account.priority,
        ttl_us=account.ttl_us,
    )
