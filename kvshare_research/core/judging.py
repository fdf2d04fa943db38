"""judge: which part of a match this reader may use. Policies see only what passed here, so can at most narrow it."""

from __future__ import annotations

from .directory import Directory
from .nouns import Chain, Match, MissReason, Run, Verdict
from .rights import Membership, Reader, Scope, may_read
from .runs import longest_blocks


def judge(match: Match, chain: Chain, reader: Reader, directory: Directory, now_us: int) -> Verdict:
    """The runs of `match` cut at the first block that `reader` may not read now; changes nothing.

    A denial is reported when somebody holds blocks beyond the cut; the operator sees it, the tenant sees a miss.
    """
    readable, why_not = 0, None
    for scope_id, end in chain.scope_ends:
        scope = directory.scopes[scope_id]
        membership = directory.membership(reader.tenant, scope)
        readable, why_not = further(readable, end, scope, reader, membership, now_us)
        if why_not is not None:
            break
    if longest_blocks(match.runs) <= readable:  # nothing to cut
        return Verdict(runs=match.runs, readable_blocks=readable, denied=())
    return Verdict(
        runs=tuple(cut(run, readable) for run in match.runs if readable > 0),
        readable_blocks=readable,
        denied=((MissReason.UNKNOWN if why_not is None else why_not, readable),),
    )


def further(
    readable_blocks: int, end: int, scope: Scope, reader: Reader, membership: Membership, now_us: int
) -> tuple[int, MissReason | None]:
    """One run of blocks more, up to `end`: how many blocks are readable now, and why not all of them (then the judge
    stops). So a chain of any length is judged by induction (theorem JUDGE-N in proofs/)."""
    if may_read(scope, reader, membership, now_us):
        return end, None
    return readable_blocks, _why_not(membership)


def cut(run: Run, readable_blocks: int) -> Run:
    """The run, no longer than `readable_blocks`."""
    return run if run.block_count <= readable_blocks else run._replace(block_count=readable_blocks)


def _why_not(membership: Membership) -> MissReason:
    """The reason of a denial: an active row that does not help can only have run out."""
    return MissReason.DENIED_EXPIRED if membership.active else MissReason.DENIED_SCOPE
