"""Who asks next, and the request that comes of it: popularity by Zipf's law, scopes by the catalogue."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from msgspec import structs

from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Request, Segment
from kvshare_research.core.rights import GROUP, PUBLIC
from kvshare_research.workload.base import PromptItem, Tokens, WorkloadInput
from kvshare_research.workload.catalogue import LAYERS, Catalogue, Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Somebody who asks: a user of a tenant, in an application, at the node they are nearest to."""

    index: int
    template: Template
    tenant_id: int
    user_id: int
    ingress: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Popularity:
    """How unevenly requests are spread: weight of rank r is r ** -exponent; 0 is even."""

    application_zipf_exponent: float
    tenant_zipf_exponent: float

    def asks(self, templates: Sequence[Template], tenants_per_application: int, given: WorkloadInput) -> Iterator[Ask]:
        """Askers without end. The first n are the same whatever is asked and however many follow.

        Applications are ranked in the order of the catalogue. The tenants of an application are ranked from another
        start in each, so that no tenant leads everywhere. A user's ingress never changes, and neighbours differ.
        """
        rng = random.Random(f"{given.seed}/asks")
        by_application = _weights(len(templates), self.application_zipf_exponent)
        by_tenant = _weights(tenants_per_application, self.tenant_zipf_exponent)
        users = _users_of(given)
        index = 0
        while True:
            rank = rng.choices(range(len(templates)), cum_weights=by_application)[0]
            tenant_rank = rng.choices(range(tenants_per_application), cum_weights=by_tenant)[0]
            template = templates[rank]
            tenant_id = template.tenant_ids[(rank + tenant_rank) % len(template.tenant_ids)]
            user_id = rng.choice(users[tenant_id])
            yield Ask(
                index=index,
                template=template,
                tenant_id=tenant_id,
                user_id=user_id,
                ingress=(user_id - 1) % given.node_count,
            )
            index += 1


def chosen_templates(given: WorkloadInput, application_count: int, tenants_per_application: int) -> list[Template]:
    """The first `application_count` templates; ConfigError if the catalogue has too few, or one has too few tenants."""
    templates = given.catalogue.templates[:application_count]
    if len(templates) < application_count:
        raise ConfigError(
            f"`workload.application_count` is {application_count}, but the tenants file has "
            f"{len(templates)} applications"
        )
    for template in templates:
        if len(template.tenant_ids) < tenants_per_application:
            raise ConfigError(
                f"`workload.tenants_per_application` is {tenants_per_application}, but `{template.application}` "
                f"has {len(template.tenant_ids)} tenants"
            )
    return list(templates)


def prompt_item(
    ask: Ask, given: WorkloadInput, layers: tuple[Tokens, Tokens, Tokens], output_tokens_max: int
) -> PromptItem:
    """The request of `ask` with the tokens of its layers (system, few-shot, user); an empty layer is no segment."""
    scope_ids = ask.template.scope_ids(given.directory, tenant_id=ask.tenant_id, user_id=ask.user_id)
    used = [i for i, tokens in enumerate(layers) if len(tokens)]
    segments = tuple(Segment(scope_id=scope_ids[i], token_count=len(layers[i])) for i in used)
    request = Request(
        request_id=ask.index,
        tenant_id=ask.tenant_id,
        user_id=ask.user_id,
        segments=segments,
        output_tokens_max=output_tokens_max,
        ingress=ask.ingress,
        arrival_us=0,
        application=ask.template.application,
    )
    system, few_shot, _ = layers
    return PromptItem(
        request=request,
        tokens=np.concatenate(layers),
        application=ask.template.application,
        layers=tuple(LAYERS[i] for i in used),
        shared_tokens=len(system) + (0 if is_own_text(ask.template) else len(few_shot)),
        tenant_shared_tokens=len(system) + len(few_shot),
    )


def asked_by(
    item: PromptItem, *, tenant_id: int, user_id: int, directory: Directory, catalogue: Catalogue
) -> PromptItem:
    """The same text as this other tenant and user would ask it, with the scopes that the catalogue gives them."""
    template = catalogue.template(item.application)
    scope_ids = template.scope_ids(directory, tenant_id=tenant_id, user_id=user_id)
    segments = tuple(
        structs.replace(segment, scope_id=scope_ids[LAYERS.index(layer)])
        for segment, layer in zip(item.request.segments, item.layers, strict=True)
    )
    return replace(item, request=structs.replace(item.request, tenant_id=tenant_id, user_id=user_id, segments=segments))


def is_own_text(template: Template) -> bool:
    """Whether each tenant brings examples of its own: so where the catalogue gives the few-shot layer to the tenant."""
    return template.few_shot.level not in (PUBLIC, GROUP)


def _weights(count: int, exponent: float) -> list[float]:
    return list(accumulate((rank + 1) ** -exponent for rank in range(count)))


def _users_of(given: WorkloadInput) -> dict[int, list[int]]:
    users: dict[int, list[int]] = {}
    for i, (_, tenant_id) in enumerate(given.directory.users):
        users.setdefault(tenant_id, []).append(i + 1)
    return users
