"""Nobody waits for what only others may read: that it takes longer would tell that they have it."""

from __future__ import annotations

import pytest

from kvshare_research.core import messages as m
from kvshare_research.core.nouns import Action, Chain, Piece, Plan, Request, Segment
from kvshare_research.core.rights import Reader
from kvshare_research.core.worker import Worker

from .test_fleet import BLOCK_TOKENS, DIRECTORY, GROUP_ID, fleet

MEMBER, OTHER = 1, 2


def node(is_member: bool) -> Worker:
    """An empty node that knows whether tenant `OTHER` still is in the group."""
    return fleet(directory=DIRECTORY if is_member else DIRECTORY.revoked(OTHER, 1)).workers[0]


def dispatched(tenant: int, text: str, pieces: tuple[Piece, ...] = ()) -> m.Dispatched:
    """A prompt of four blocks of the group's text, as a router that knows of no revocation hands it on."""
    names = [f"{text}{i}".encode().ljust(16, b".") for i in range(4)]
    chain = Chain(hashes=b"".join(names), scope_ends=((GROUP_ID, 4),), block_tokens=BLOCK_TOKENS)
    request = Request(
        request_id=tenant, tenant_id=tenant, segments=(Segment(scope_id=GROUP_ID, token_count=4 * BLOCK_TOKENS + 1),),
        output_tokens_max=1, ingress=0, arrival_us=0,
    )  # fmt: skip
    plan = Plan(
        request_id=tenant, action=Action.PULL if pieces else Action.RESIDENT, executor=0, resident_blocks=0,
        front_blocks=0, pieces=pieces, quoted_ttft_us=0,
    )  # fmt: skip
    return m.Dispatched(request=request, chain=chain, plan=plan, reader=Reader(tenant, 0, 0))


@pytest.mark.parametrize("is_member", [True, False])
def test_a_sibling_of_what_is_being_fetched(is_member: bool) -> None:
    """The member's blocks are on their way. A member waits for them; who has left computes, as beside another text."""
    waits = []
    for text in ("same", "else"):
        worker = node(is_member)
        worker.handle(dispatched(MEMBER, text, (Piece(source=1, start=0, end=4),)), 0)
        effects = worker.handle(dispatched(OTHER, "same"), 1)
        waits.append(not any(isinstance(e, m.Prefill) for e in effects))
    assert waits == [is_member, False]


@pytest.mark.parametrize("is_member", [True, False])
def test_a_fetch_of_what_is_being_computed(is_member: bool) -> None:
    """The member's blocks are being computed. A member's fetch is kept until then; another's is refused at once."""
    answers = []
    for text in ("same", "else"):
        worker = node(is_member)
        worker.handle(dispatched(MEMBER, text), 0)
        hashes = dispatched(OTHER, "same").chain.block_hashes(0, 2)
        asked = m.FetchAsked(fetch_id=1, asker=1, reader=Reader(OTHER, 0, 0), hashes=hashes, revision=0)
        answers.append(any(isinstance(e, m.RefuseFetch) for e in worker.handle(asked, 1)))
    assert answers == [not is_member, True]
