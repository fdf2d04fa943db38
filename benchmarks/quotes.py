"""How well today's router would have quoted a recorded run, with the choices of that run: no clock, so no noise.

    python -m benchmarks.quotes outputs/demo [decode_step_ps]

Reads every `router.log` below the folder (a study's block with `record: true` leaves them), hands its inputs to a fresh
router whose selector repeats what was chosen, and compares its quotes with the measured TTFT. `decode_step_ps` stands
in where the run was calibrated without decoding.
"""

from __future__ import annotations

import statistics
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from kvshare_research.core import messages as m
from kvshare_research.core.nouns import Outcome, QuoteTable, Status
from kvshare_research.core.ports import Selector
from kvshare_research.driver.assembly import assembly_at
from kvshare_research.driver.log import read_log
from kvshare_research.transport.wire import decode_core

WARMUP = 6  # requests of each run that are not counted


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AsRecorded(Selector):
    """The cheapest row of the recorded way on the recorded node; of any way there where it is quoted no more."""

    chosen: Mapping[int, tuple[int, int]]  # (action, executor) by request

    def select(self, table: QuoteTable) -> int:
        action, executor = self.chosen[table.draw]
        there = table.executor == executor
        wanted = there & (table.action == action)
        rows = np.flatnonzero(wanted if wanted.any() else there)
        return int(rows[np.argmin(table.ttft_us[rows])])


def quoted(path: Path, decode_step_ps: int | None) -> list[Outcome]:
    """The served requests of one recorded run, quoted anew."""
    log = read_log(path.read_bytes())
    config = dict(log.config)
    if decode_step_ps is not None:
        config["cost"] = dict(config["cost"]) | {"decode_step_ps": decode_step_ps}
    events = [(entry.now_us, decode_core(entry.kind, entry.body)) for entry in log.entries]
    ends = [event.outcome for _, event in events if isinstance(event, m.Completed)]
    router: Any = assembly_at(log.assembly).router(config, log.place)
    chosen = {o.request_id: (int(o.action), o.executor) for o in ends}
    router.policy = replace(router.policy, selector=AsRecorded(chosen=chosen))
    effects = [effect for now_us, event in events for effect in router.handle(event, now_us)]
    made = [e.outcome for e in effects if isinstance(e, m.Record) and e.outcome.status == Status.DONE]
    return sorted(made, key=lambda o: o.request_id)[WARMUP:]


def main(folder: str, decode_step_ps: str | None = None) -> None:
    for path in sorted(Path(folder).rglob("router.log")):
        rows = quoted(path, None if decode_step_ps is None else int(decode_step_ps))
        errors = [abs(o.quoted_ttft_us / o.ttft_us - 1) for o in rows]
        then = statistics.mean(dict(o.quoted_us)["queue_us"] for o in rows), statistics.mean(o.queue_us for o in rows)
        print(
            f"{path.parent.name}: {len(rows)} requests, median error {statistics.median(errors):.1%}, "
            f"queue quoted {then[0] / 1e3:.0f} ms, measured {then[1] / 1e3:.0f} ms"
        )


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m benchmarks.quotes", description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="every `router.log` below it is read")
    parser.add_argument("decode_step_ps", nargs="?", help="stands in where the run was calibrated without decoding")
    main(**vars(parser.parse_args()))
