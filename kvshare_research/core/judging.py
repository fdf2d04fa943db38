"""judge: which part of a match this reader may use. Policies see only what passed here, so can at most narrow it."""

from __future__ import annotations

from .directory import Directory
from .nouns import Chain, Match, MissReason, Run, Verdict
from .rights import Membership, Reader, may_read


def judge(match: Match, chain: Chain, reader: Reader, directory: Directory, now_us: int) -> Verdict:
    """The runs of `match` cut at the first block that `reader` may not read now; changes nothing.

    A denial is reported when somebody holds blocks beyond the cut; the operator sees it, the tenant sees a miss.
    """
    readable = 0
    reason = MissReason.UNKNOWN
    for scope_id, end in chain.scope_ends:
        scope = directory.scopes[scope_id]
        membership = directory.membership(reader.tenant, scope)
        if not may_read(scope, reader, membership, now_us):
            reason = _why_not(membership)
            break
        readable = end
    held = max((run.block_count for run in match.runs), default=0)
    return Verdict(
        runs=tuple(cut(run, readable) for run in match.runs if readable > 0),
        readable_blocks=readable,
        denied=((reason, readable),) if held > readable else (),
    )


def cut(run: Run, readable_blocks: int) -> Run:
    """The run, no longer than `readable_blocks`."""
    return run if run.block_count <= readable_blocks else run._replace(block_count=readable_blocks)


def _why_not(membership: Membership) -> MissReason:
    """The reason of a denial: an active row that does not help can only have run out."""
    return MissReason.DENIED_EXPIRED if membership.active else MissReason.DENIED_SCOPE
