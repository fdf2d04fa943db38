"""Calibration before the measured cases: prefill on a worker, links between workers, the merge of landed bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .assembly import CALIBRATION

if TYPE_CHECKING:
    from .session import Session

ROUND_TRIPS = 8
TRANSFERS = 6
TRANSFER_BLOCKS = 6


def link_samples(session: Session, config: Mapping[str, Any]) -> list[list[int]]:
    """[source, reader, bytes, us] of bare round trips and of transfers over every directed link of this setting."""
    cluster = session.cluster
    size = TRANSFER_BLOCKS * session.block_bytes
    session.progress.stage("measuring links")
    cluster.reset(config)
    rows: list[list[int]] = []
    for source in range(cluster.node_count):
        for reader in range(cluster.node_count):
            if source == reader:
                continue
            for payload, repeats in ((0, ROUND_TRIPS), (size, TRANSFERS)):
                times = cluster.measure_link(source, reader, payload_bytes=payload, repeats=repeats)
                rows += [[source, reader, payload, us] for us in times]
    return rows


def with_links(config: dict[str, Any], samples: list[list[int]]) -> dict[str, Any]:
    """The configuration of a case that starts with these links known."""
    return config | {CALIBRATION: {**config.get(CALIBRATION, {}), "link_samples": samples}}
