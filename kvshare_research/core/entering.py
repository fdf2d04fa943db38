"""What a router turns away before it decides anything: requests that no worker could ever end."""

from __future__ import annotations

from collections.abc import Sequence

from .directory import Directory
from .nouns import Outcome, Request, Status


def unfit(request: Request, directory: Directory, live: Sequence[int]) -> str:
    """Why the request cannot be served by any of the `live` nodes; empty: it may be decided.

    A prompt without a token would hold its place on a worker for ever, and lengths below 0 would get it fewer blocks
    than it writes.
    """
    if request.tenant_id in directory.removed:
        return "the tenant has been removed"
    if request.token_count < 1 or min(s.token_count for s in request.segments) < 0 or request.output_tokens_max < 0:
        return "a prompt has at least one token, and no length is below 0"
    wanted = request.executor
    if live and (wanted is None or wanted in live):
        return ""
    return "no live worker" if wanted is None else f"worker {wanted}, which it is pinned to, is not live"


def rejection(request: Request, reason: str, after_us: int) -> Outcome:
    """What becomes of a request that is turned away `after_us` its receipt."""
    return Outcome(
        request_id=request.request_id,
        tenant_id=request.tenant_id,
        application=request.application,
        status=Status.REJECTED,
        reason=reason,
        ingress=request.ingress,
        arrival_us=request.arrival_us,
        end_to_end_us=after_us,
        prompt_tokens=request.token_count,
    )
