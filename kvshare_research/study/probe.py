"""Probes: the same prompt answered from a local hit, from a pull, and recomputed, each measured in the same run.

For each probe, on fresh pools: a first request computes an application's prefix on node 0; a second tenant's request
reuses it there (local); a third tenant's request with the very same text runs on node 1, which does not hold the
prefix, and must pull it (remote); a fourth recomputes it there. Private tails never match, so all three compute the
same suffix after the same prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Outcome
from kvshare_research.driver.cluster import Played
from kvshare_research.metrics.records import BASELINE, CaseResult
from kvshare_research.workload.asking import asked_by
from kvshare_research.workload.base import PromptItem

from .plan import Case
from .prompts import Prompt, arrivals
from .settings import choice

if TYPE_CHECKING:
    from .session import Session

LOCAL, REMOTE = "local_hit", "remote_hit"


def play_probes(session: Session, case: Case, config: dict[str, Any]) -> list[CaseResult]:
    """Three results: local hit, remote hit and recompute, paired by probe number."""
    if session.cluster.node_count < 2:
        raise ConfigError(f"block `{case.block.name}` pulls between workers: start 3 ranks or more")
    pulling = _pulling(config)
    recomputing = config | {"selector": choice("selector", BASELINE)}
    pairs = _pairs(session.items(case, config, 40 * case.block.requests), case.block.requests)
    kept: dict[str, tuple[list[Outcome], list[Prompt], list[Played]]] = {
        name: ([], [], []) for name in (LOCAL, REMOTE, BASELINE)
    }
    session.progress.stage(case.title, len(pairs))
    for index, (first, second) in enumerate(pairs):
        session.cluster.reset(pulling)
        _one(session, pulling, index, first, node=0, tenant_offset=0)
        for name, node, offset in ((LOCAL, 0, 0), (REMOTE, 1, 1)):
            _keep(kept[name], *_one(session, pulling, index, second, node=node, tenant_offset=offset))
        session.cluster.reset(recomputing)
        _keep(kept[BASELINE], *_one(session, recomputing, index, second, node=1, tenant_offset=2))
        session.progress.advance()
    results = []
    for name, (outcomes, prompts, played) in kept.items():
        whole = replace(
            played[-1],
            counters=_added(played),
            outcomes=tuple(
                structs.replace(o, request_id=(session.next_number() << 32) + i) for i, o in enumerate(outcomes)
            ),
        )
        ids = [o.request_id for o in whole.outcomes]
        renamed = [
            replace(p, request=structs.replace(p.request, request_id=i)) for p, i in zip(prompts, ids, strict=True)
        ]
        results.append(session.record(case, config, whole, renamed, None, selector=name))
    return results


def pull_once(session: Session, case: Case, config: dict[str, Any]) -> tuple[int, int]:
    """(bytes, merge us) of one pull of one application's prefix from node 0 to node 1."""
    pulling = _pulling(config)
    ((first, second),) = _pairs(session.items(case, config, 40), 1)
    session.cluster.reset(pulling)
    _one(session, pulling, 0, first, node=0, tenant_offset=0)
    _, played = _one(session, pulling, 0, second, node=1, tenant_offset=0)
    return played.outcomes[0].pulled_bytes, played.outcomes[0].merge_us


def _pulling(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration in which an executor without the prefix always pulls it."""
    return config | {"selector": choice("selector", "pull_always")}


def _added(played: Sequence[Played]) -> dict[str, dict[str, int]]:
    """The counters of several cases, added up."""
    total: dict[str, Counter[str]] = {}
    for one in played:
        for place, row in one.counters.items():
            total.setdefault(place, Counter()).update(row)
    return {place: dict(row) for place, row in total.items()}


def _keep(into: tuple[list[Outcome], list[Prompt], list[Played]], prompt: Prompt, played: Played) -> None:
    into[0].extend(played.outcomes)
    into[1].append(prompt)
    into[2].append(played)


def _pairs(items: Sequence[PromptItem], count: int) -> list[tuple[PromptItem, PromptItem]]:
    """`count` pairs of prompts of one application and two tenants, applications in turn."""
    by_application: dict[str, list[PromptItem]] = {}
    for item in items:
        by_application.setdefault(item.application, []).append(item)
    pairs: list[tuple[PromptItem, PromptItem]] = []
    while len(pairs) < count:
        before = len(pairs)
        for waiting in by_application.values():
            partner = next((i for i in waiting[1:] if i.request.tenant_id != waiting[0].request.tenant_id), None)
            if partner is not None and len(pairs) < count:
                pairs.append((waiting.pop(0), partner))
                waiting.remove(partner)
        if len(pairs) == before:
            raise ConfigError(f"the workload gives {len(pairs)} pairs of tenants with one application, need {count}")
    return pairs


def _one(
    session: Session, config: Mapping[str, Any], index: int, item: PromptItem, *, node: int, tenant_offset: int
) -> tuple[Prompt, Played]:
    """The item served alone on `node`, as another tenant of the same application."""
    item = _as_tenant(session, config, item, tenant_offset)
    request = structs.replace(
        item.request, request_id=(session.next_number() << 32) + index, executor=node, ingress=node,
        application=item.application,
    )  # fmt: skip
    prompt = session.hasher(config).prompt(request, item.tokens, warmup=False)
    return prompt, session.cluster.play_idle(arrivals([prompt], (0,)))


def _as_tenant(session: Session, config: Mapping[str, Any], item: PromptItem, offset: int) -> PromptItem:
    """The same text asked by the tenant `offset` places further, with that tenant's own scopes."""
    if not offset:
        return item
    directory, catalogue = session.parties(config)
    tenant = (item.request.tenant_id - 1 + offset) % len(directory.tenants) + 1
    user = next((i + 1 for i, (_, owner) in enumerate(directory.users) if owner == tenant), 0)
    return asked_by(item, tenant_id=tenant, user_id=user, directory=directory, catalogue=catalogue)
