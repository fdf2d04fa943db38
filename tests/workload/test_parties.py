"""The party table: what a good one becomes, and the message for every way in which one can be wrong."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from kvshare_research.core.directory import FOREVER_US
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.rights import GROUP, PUBLIC, TENANT, USER, Membership, Scope
from kvshare_research.workload.parties import load_parties
from kvshare_research.workload.texts import application_names

from .kit import table

GOOD: dict[str, Any] = {
    "priorities": {"low": 0, "high": 2},
    "public": {"reserved_bytes": 10, "priority": "high"},
    "groups": [{"name": "staff", "account": {"limit_bytes": 95}}, {"name": "guests"}],
    "tenants": [
        {"name": "ada", "users": ["ann", "abe"], "groups": [{"name": "staff", "expiry_us": 50}]},
        {
            "name": "bob",
            "groups": [{"name": "staff"}],
            "account": {"reserved_bytes": 21, "limit_bytes": 40, "ttl_us": 7},
        },
    ],
    "applications": [
        {"name": "maths", "system": "group:staff", "few_shot": "tenant", "user": "user"},
        {"name": "triage", "tenants": ["bob"], "system": "public", "few_shot": "public", "user": "tenant"},
    ],
}


def test_a_good_table_becomes_directory_and_catalogue():
    directory, catalogue = load_parties(GOOD)
    assert directory.tenants == ("ada", "bob")
    assert directory.groups == ("staff", "guests")
    assert directory.users == (("ann", 1), ("abe", 1), ("bob-1", 2))
    assert directory.scopes == (
        Scope(PUBLIC, 0),
        *(Scope(GROUP, i) for i in (1, 2)),
        *(Scope(TENANT, i) for i in (1, 2)),
        *(Scope(USER, i) for i in (1, 2, 3)),
    )
    assert directory.membership(1, Scope(GROUP, 1)) == Membership(True, 1, 50)
    assert directory.membership(2, Scope(GROUP, 1)) == Membership(True, 1, FOREVER_US)
    assert not directory.membership(2, Scope(GROUP, 2)).active
    assert [t.tenant_ids for t in catalogue.templates] == [(1, 2), (2,)]
    assert catalogue.template("maths").scope_ids(directory, tenant_id=1, user_id=2) == (1, 3, 6)
    assert [a.scope_id for a in catalogue.accounts] == list(range(8))


def test_bytes_become_blocks_floor_up_and_limit_down():
    directory, catalogue = load_parties(GOOD)
    sized = catalogue.sized(directory, block_bytes=10, capacity_blocks=20)
    rows = [(a.reserved_blocks, a.limit_blocks, a.priority, a.ttl_us) for a in sized.accounts]
    assert rows[:5] == [(1, 20, 2, None), (0, 9, 0, None), (0, 20, 0, None), (0, 20, 0, None), (3, 4, 0, 7)]
    assert rows[5:] == [(0, 20, 0, None), (0, 20, 0, None), (0, 4, 0, 7)]  # users: no floor, their tenant's limit
    assert sized.scopes == directory.scopes


@pytest.mark.parametrize(
    ("block_bytes", "capacity_blocks", "message"),
    [
        (
            10,
            3,
            "the floors of all accounts come to 4 blocks, more than the pool of 3; lower `reserved_bytes`",
        ),
        (
            41,
            9,
            "account of `bob`: the floor of 21 bytes needs 1 blocks of 41 bytes, its limit holds 0; raise",
        ),
    ],
)
def test_quotas_that_do_not_fit_the_pool_are_refused(block_bytes, capacity_blocks, message):
    directory, catalogue = load_parties(GOOD)
    with pytest.raises(ConfigError) as caught:
        catalogue.sized(directory, block_bytes=block_bytes, capacity_blocks=capacity_blocks)
    assert str(caught.value).startswith(message)


def test_floors_that_do_not_fit_are_scaled_and_reported_where_the_table_says_so(caplog, monkeypatch):
    # A command composed in this process by another test may have silenced loggers that existed then.
    monkeypatch.setattr(logging.getLogger("kvshare_research.workload.catalogue"), "disabled", False)
    directory, catalogue = load_parties({**GOOD, "oversubscribed": "scale"})
    sized = catalogue.sized(directory, block_bytes=10, capacity_blocks=3)
    assert sum(a.reserved_blocks for a in sized.accounts) <= 3
    assert "blocks instead of" in caplog.text
    with pytest.raises(ConfigError, match="did you mean `scale`"):
        load_parties({**GOOD, "oversubscribed": "scales"})


def test_floors_may_fill_the_pool_exactly():
    directory, catalogue = load_parties(GOOD)
    sized = catalogue.sized(directory, block_bytes=22, capacity_blocks=2)
    assert sum(a.reserved_blocks for a in sized.accounts) == 2


@pytest.mark.parametrize("name", ["demo", "saas", "departments"])
def test_the_shipped_tables_are_good_and_every_application_has_texts(name):
    directory, catalogue = load_parties(table(name), f"conf/tenants/{name}.yaml")
    assert {t.application for t in catalogue.templates} <= set(application_names())
    assert len(catalogue.templates) >= 5
    assert min(len(t.tenant_ids) for t in catalogue.templates) >= 3
    catalogue.sized(directory, block_bytes=737_280, capacity_blocks=128)
    if name == "saas":
        assert not directory.groups
        assert {t.system.level for t in catalogue.templates} == {PUBLIC}
    if name == "departments":
        assert {t.system.level for t in catalogue.templates} == {GROUP}
        assert len({a.priority for a in catalogue.accounts}) == 3
        assert len({a.reserved_bytes for a in catalogue.accounts}) == 3


WRONG: list[tuple[str, Any, str]] = [
    ("prioritys", {}, "t.yaml: unknown key `prioritys`; did you mean `priorities`?"),
    ("tenants", None, "t.yaml: `tenants` is `None`, expected a list of rows with name, users, groups, account"),
    ("tenants", [], "t.yaml: `tenants` is `[]`, expected a list of rows with name, users, groups, account"),
    ("tenants.1.name", "ada", "t.yaml: `ada` is defined twice in `tenants`, rows 0 and 1"),
    ("tenants.1.name", 7, "t.yaml: `tenants.1.name` is `7`, expected a name"),
    ("tenants.1.name", "  ", "t.yaml: `tenants.1.name` is `  `, expected a name"),
    (
        "tenants.1.name",
        "b\x1b[2J",
        "t.yaml: `tenants.1.name` is `b\\x1b[2J`, expected a name without control characters",
    ),
    ("tenants.1.users", ["bea", ""], "t.yaml: `tenants.bob.users.1` is ``, expected a name"),
    ("tenants.1.users", [None], "t.yaml: `tenants.bob.users.0` is `None`, expected a name"),
    ("tenants.1.users", [True], "t.yaml: `tenants.bob.users.0` is `True`, expected a name"),
    (
        "priorities.low",
        1 << 63,
        "t.yaml: `priorities.low` is `9223372036854775808`, expected a whole number of at most 63 bits",
    ),
    (
        "tenants.0.groups.0.expiry_us",
        1 << 63,
        "t.yaml: `tenants.ada.groups.staff.expiry_us` is `9223372036854775808`, expected a whole number of at most 63 bits",
    ),
    ("groups.1.name", "staff", "t.yaml: `staff` is defined twice in `groups`, rows 0 and 1"),
    ("tenants.1.users", ["ann"], "t.yaml: user `ann` is defined twice, second time in `tenants.bob.users`"),
    ("tenants.1.users", 0, "t.yaml: `tenants.bob.users` is `0`, expected at least one user"),
    ("tenants.1.users", 1.5, "t.yaml: `tenants.bob.users` is `1.5`, expected a whole number, 0 or more"),
    ("tenants.1.quota", 5, "t.yaml: unknown key `tenants.1.quota`; choices: `account`, `groups`, `name`, `users`"),
    (
        "tenants.0.groups.0.name",
        "stuff",
        "t.yaml: `tenants.ada.groups` names unknown group `stuff`; did you mean `staff`?",
    ),
    (
        "tenants.0.groups.0.expiry_us",
        -1,
        "t.yaml: `tenants.ada.groups.staff.expiry_us` is `-1`, expected a whole number, 0 or more",
    ),
    (
        "tenants.1.account.reserved_bytes",
        -4,
        "t.yaml: `tenants.bob.account.reserved_bytes` is `-4`, expected a whole number, 0 or more",
    ),
    (
        "tenants.1.account.limit_bytes",
        "40MB",
        "t.yaml: `tenants.bob.account.limit_bytes` is `40MB`, expected a whole number, 0 or more",
    ),
    (
        "tenants.1.account.limit_bytes",
        True,
        "t.yaml: `tenants.bob.account.limit_bytes` is `True`, expected a whole number, 0 or more",
    ),
    (
        "tenants.1.account.limit_bytes",
        20,
        "t.yaml: `tenants.bob.account.reserved_bytes` is 21, above its `limit_bytes` of 20",
    ),
    (
        "tenants.1.account.limit_byte",
        20,
        "t.yaml: unknown key `tenants.bob.account.limit_byte`; did you mean `limit_bytes`?",
    ),
    (
        "tenants.1.account.ttl_us",
        -7,
        "t.yaml: `tenants.bob.account.ttl_us` is `-7`, expected a whole number, 0 or more",
    ),
    (
        "public.priority",
        "hihg",
        "t.yaml: `public.priority` names unknown priority `hihg`; did you mean `high`?",
    ),
    ("priorities.low", -1, "t.yaml: `priorities.low` is `-1`, expected a whole number, 0 or more"),
    ("priorities", {}, "t.yaml: `priorities` is `{}`, expected names with a whole number each, 0 the weakest"),
    (
        "applications.1.tenants",
        ["bo"],
        "t.yaml: `applications.triage.tenants` names unknown tenant `bo`; did you mean `bob`?",
    ),
    (
        "applications.1.tenants",
        ["bob", "bob"],
        "t.yaml: `applications.triage.tenants` is `['bob', 'bob']`, expected every tenant once",
    ),
    (
        "applications.1.tenants",
        [],
        "t.yaml: `applications.triage.tenants` is `[]`, expected a list with at least one tenant",
    ),
    ("applications.1.name", "maths", "t.yaml: `maths` is defined twice in `applications`, rows 0 and 1"),
    (
        "applications.0.few_shot",
        "tennant",
        "t.yaml: `applications.maths.few_shot` is `tennant`, expected public, group:NAME, tenant or user; "
        "did you mean `tenant`?",
    ),
    (
        "applications.0.system",
        "group:stafff",
        "t.yaml: `applications.maths.system` names unknown group `stafff`; did you mean `staff`?",
    ),
    (
        "applications.0.few_shot",
        "public",
        "t.yaml: `applications.maths.few_shot` widens the scope of `system` before it, expected the same scope or a "
        "tighter level (public, group, tenant, user)",
    ),
    (
        "applications.0.few_shot",
        "group:guests",
        "t.yaml: `applications.maths.few_shot` widens the scope of `system` before it, expected the same scope or a "
        "tighter level (public, group, tenant, user)",
    ),
    (
        "tenants.1.groups",
        [],
        "t.yaml: `applications.maths.system` belongs to group `staff`, but tenant `bob`, who uses the application, is "
        "no member of it",
    ),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG, ids=[f"{p}={v}" for p, v, _ in WRONG])
def test_every_mistake_has_its_message(path, value, message):
    changed = copy.deepcopy(GOOD)
    *way, last = path.split(".")
    place: Any = changed
    for step in way:
        place = place[int(step)] if step.isdigit() else place[step]
    place[last] = value
    with pytest.raises(ConfigError) as caught:
        load_parties(changed, "t.yaml")
    assert str(caught.value) == message


@pytest.mark.parametrize("key", ["tenants", "applications"])
def test_a_missing_table_is_named(key):
    with pytest.raises(ConfigError) as caught:
        load_parties({k: v for k, v in GOOD.items() if k != key}, "t.yaml")
    assert str(caught.value) == f"t.yaml: `{key}` is missing"


def test_an_unknown_application_is_named():
    _, catalogue = load_parties(GOOD)
    with pytest.raises(ConfigError, match="no application `maths2` in the catalogue; did you mean `maths`"):
        catalogue.template("maths2")
