"""What is said in a simulated fleet: what one machine wants done, as what it is to the one that hears it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvshare_research.core import messages as m

from .simulator_engine import Ended

# A worker's words to the router, by the type of its effect; those whose way takes time are the simulator's own.
TO_ROUTER: Mapping[type, Callable[[int, Any], m.RouterEvent]] = {
    m.ReturnPlan: lambda node, e: m.PlanRefused(request_id=e.request_id, node=node, reason=e.reason),
    m.ReportLink: lambda node, e: m.LinkMeasured(
        source=e.source, reader=node, bytes_moved=e.bytes_moved, elapsed_us=e.elapsed_us
    ),
    m.ReportPrefetch: lambda node, e: m.PrefetchEnded(
        prefetch_id=e.prefetch_id, node=node, landed_blocks=e.landed_blocks, bytes_moved=e.bytes_moved, reason=e.reason
    ),
    m.ReportKept: lambda node, e: m.PrefixesKept(node=node, names=e.names),
    m.AcknowledgeDirectory: lambda node, e: m.DirectoryAcknowledged(node=node, revision=e.revision),
}

# The router's words to the worker `effect.node`.
TO_WORKER: Mapping[type, Callable[[Any], m.WorkerEvent]] = {
    m.SendPrefetch: lambda e: e.asked,
    m.SendKeep: lambda e: m.KeepPrefixes(prefixes=e.prefixes),
    m.AskSnapshot: lambda e: m.SnapshotAsked(incarnation=e.incarnation, after_seq=e.after_seq),
    m.SendDirectory: lambda e: m.DirectoryChanged(directory=e.directory),
}


def engine_event(ended: Ended) -> m.WorkerEvent:
    """The end of a stretch or a decode, to the worker whose engine it is."""
    if not ended.is_prefill:
        return m.DecodeDone(request_id=ended.request_id, tokens=(0,) * ended.token, elapsed_us=ended.elapsed_us)
    return m.PrefillDone(
        request_id=ended.request_id, end_token=ended.token, elapsed_us=ended.elapsed_us, merge_us=0,
        first_token=0 if ended.is_last else None,
    )  # fmt: skip
