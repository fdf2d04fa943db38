"""Calibration before the measured cases: prefill and decode on a worker, merges of landed bytes, links between them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvshare_research.cost import calibration

from .assembly import CALIBRATION
from .plan import Block, Case
from .probe import pull_once

if TYPE_CHECKING:
    from .session import Session

ROUND_TRIPS = 8
TRANSFERS = 6
TRANSFER_BLOCKS = 6
MERGES = 3
CHECKS = 3
DECODED_TOKENS, DECODES = 4, 3  # so many tokens, so many times, after the shortest and the longest context
ANY_LINK = "any"  # links are measured for each setting, not cached


def calibrated(session: Session) -> calibration.Calibration:
    """Prefill and decode coefficients and merge rate of this model, device, dtype and thread count.

    Taken from the cache where they reach far enough and still hold, else measured now; `force=true` always measures.
    """
    engine = session.run.resolved["engine"]
    model, device = session.cluster.engines[0].fingerprint, str(engine.get("device", "cpu"))
    dtype = str(engine["dtype"])
    threads = int(engine.get("threads", 1))
    folder = Path(session.run.values.cache_root).expanduser() / "calibrations"
    config = dict(session.run.resolved)
    longest = max(len(item.tokens) for item in session.items(_case(session), config, 8))
    known = calibration.load(folder, model=model, device=device, dtype=dtype, threads=threads, link=ANY_LINK)
    fresh = session.run.values.force
    if not fresh and known is not None and _reaches(known, longest) and _holds(session, config, known, longest):
        session.progress.stage(f"calibration of this model is known ({folder / known.name})")
        return known
    points = _prefill_points(session, config, longest)
    decodes = _decode_points(session, config, longest)
    session.progress.stage("measuring the merge of landed blocks")
    merges = [
        pull_once(session, _case(session), config) for _ in range(MERGES if session.cluster.node_count > 1 else 0)
    ]
    made = calibration.calibrate(
        model=model,
        device=device,
        dtype=dtype,
        threads=threads,
        link=ANY_LINK,
        points=points,
        merges=[m for m in merges if m[0]],
        decodes=decodes,
        seed=session.run.values.seed,
    )
    if made.held_out_error_ratio <= calibration.KNOWN_ERROR_MAX:
        calibration.save(made, folder)
    else:
        session.progress.say(
            f"this calibration is {made.held_out_error_ratio:.0%} off on shapes it was not fitted to: quotes are "
            "rough, and it is not kept; is the machine busy with other work?"
        )
    return made


def _case(session: Session) -> Case:
    block = Block(name="calibration", requests=8)
    return Case(
        block=block, utilisation=0.0, overlap=None, selector=None, tenancy=None, link=None, seed=session.run.values.seed
    )


def _prefill_points(session: Session, config: Mapping[str, Any], longest: int) -> list[calibration.Point]:
    """(new tokens, cached tokens, us), measured on the first worker; the first shape is run once before, unmeasured."""
    cost: Mapping[str, Any] = config["cost"]
    grid = calibration.prefill_grid(
        longest,
        int(config["engine"]["block_tokens"]),
        session.run.parts["study"].calibration_seconds,
        int(cost.get("c1_ps_per_token", 0)),
    )
    session.progress.stage(f"measuring prefill at {len(grid.points)} shapes, {grid.repeats} times each")
    session.cluster.reset(config)
    session.cluster.measure_prefill(0, grid.ranges[:1], repeats=1, seed=1)
    rows = session.cluster.measure_prefill(0, grid.ranges, repeats=grid.repeats, seed=0)
    return [(new, cached, us) for (new, cached), times in zip(grid.points, rows, strict=True) for us in times]


def _reaches(known: calibration.Calibration, longest: int) -> bool:
    """Whether what was measured covers prompts of this length, answers included."""
    return known.decode_step_ps is not None and max(new + cached for new, cached, _ in known.points) >= longest // 2


def _holds(session: Session, config: Mapping[str, Any], known: calibration.Calibration, longest: int) -> bool:
    """Whether what is known is how fast this machine is now: it may have been measured beside other work."""
    session.progress.stage("comparing the known calibration with this machine")
    session.cluster.reset(config)
    block_tokens = int(config["engine"]["block_tokens"])
    tokens = max(longest // block_tokens, 1) * block_tokens
    session.cluster.measure_prefill(0, ((0, tokens),), repeats=1, seed=1)
    (times,) = session.cluster.measure_prefill(0, ((0, tokens),), repeats=CHECKS, seed=0)
    if known.still_holds([(tokens, 0, us) for us in times]):
        return True
    session.progress.say(
        f"the known calibration says {known.prefill_us(tokens, 0) / 1000:.0f} ms for a prefill of {tokens} tokens, "
        f"which now takes {statistics.median(times) / 1000:.0f} ms; it is measured again"
    )
    return False


def _decode_points(session: Session, config: Mapping[str, Any], longest: int) -> list[calibration.Point]:
    """(tokens, context tokens, us), measured on the first worker, which has just run."""
    contexts = (int(config["engine"]["block_tokens"]), longest - DECODED_TOKENS)
    session.progress.stage("measuring decode")
    points = [(context, DECODED_TOKENS) for context in contexts]
    rows = session.cluster.measure_decode(0, points, repeats=DECODES, seed=0)
    return [(count, context, us) for (context, count), times in zip(points, rows, strict=True) for us in times]


def applied(config: dict[str, Any], made: calibration.Calibration, samples: list[list[int]]) -> dict[str, Any]:
    """The configuration of a case whose cost and links are as measured."""
    return config | {CALIBRATION: {"cost": made.measured(), "link_samples": samples}}


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
