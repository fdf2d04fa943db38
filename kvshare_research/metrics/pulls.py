"""What pulling a prefix costs beside finding it locally, from probes that measure both in one run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from . import statistics
from .pairing import group_cases, pair
from .records import CaseKey, CaseResult
from .statistics import Estimate


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """What a remote hit costs beside a local hit of the same prefix and suffix, in the same run. Times in us."""

    key: CaseKey  # of the remote hits
    pairs: int
    local_ttft: Estimate
    remote_ttft: Estimate
    extra_ttft: Estimate  # median over pairs of remote - local
    pulled_bytes: int  # mean of a remote hit


LOCAL_HIT, REMOTE_HIT = "local_hit", "remote_hit"  # what stands for the selector in a probe


def pulls(cases: Iterable[CaseResult]) -> tuple[Pull, ...]:
    """One row per probe that measured the same requests as local and as remote hits. Partial cases are left out."""
    groups = [g for g in group_cases(cases) if not g.incomplete]
    local = {g.key: g for g in groups}
    rows = []
    for group in groups:
        partner = local.get(group.key._replace(selector=LOCAL_HIT))
        if group.key.selector != REMOTE_HIT or partner is None:
            continue
        pairs = pair(group, partner)
        seeds = [key.seed for key, _, _ in pairs]
        near, far = [o.ttft_us for _, _, o in pairs], [o.ttft_us for _, o, _ in pairs]
        rows.append(
            Pull(
                key=group.key,
                pairs=len(pairs),
                local_ttft=statistics.median(near, seeds),
                remote_ttft=statistics.median(far, seeds),
                extra_ttft=statistics.paired_difference(near, far, seeds),
                pulled_bytes=sum(o.pulled_bytes for _, o, _ in pairs) // max(1, len(pairs)),
            )
        )
    return tuple(rows)
