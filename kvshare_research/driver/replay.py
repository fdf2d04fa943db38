"""Decides a recorded log again, from its configuration alone, and says where a decision differs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvshare_research.core.errors import KvShareError, RemoteError
from kvshare_research.driver.assembly import assembly_at
from kvshare_research.driver.log import digest, read_log
from kvshare_research.transport.wire import decode_core


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Entry `index` was decided otherwise. Later ones may differ because of it."""

    index: int
    now_us: int
    kind: str
    decided: str  # the effects this time, by name, or the error


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of the log; `mismatches` is empty if every decision was the same."""

    node: int | None
    event_count: int
    effect_count: int
    mismatches: tuple[Mismatch, ...]


def replay(data: bytes) -> Replayed:
    """A fresh machine has decided the whole log; nothing is performed. Raises ConfigError if it cannot be built."""
    log = read_log(data)
    assembly = assembly_at(log.assembly)
    build = assembly.router if log.place.node is None else assembly.worker
    machine: Any = build(log.config, log.place)
    mismatches: list[Mismatch] = []
    effect_count = 0
    for index, entry in enumerate(log.entries):
        decided: str
        try:
            effects = machine.handle(decode_core(entry.kind, entry.body), entry.now_us)
            effect_count += len(effects)
            names = ", ".join(type(e).__name__ for e in effects) or "no effect"
            decided = "" if digest(effects) == entry.effects_digest else names
        except RemoteError:
            raise
        except Exception as error:  # noqa: BLE001 -- a machine that raises decided otherwise; say so and go on
            decided = f"{type(error).__name__}: {error}"
        if decided:
            mismatches.append(Mismatch(index=index, now_us=entry.now_us, kind=entry.kind, decided=decided))
    return Replayed(
        node=log.place.node, event_count=len(log.entries), effect_count=effect_count, mismatches=tuple(mismatches)
    )


def main(paths: Sequence[str]) -> int:
    """Replays the logs named on a command line and says of each what came of it; 1 if any differs, 2 without a log."""
    asked = bool({"--help", "-h"} & set(paths))
    if asked or not paths:
        print("python -m kvshare_research.driver.replay LOG...: decides recorded logs again; give at least one log",
              file=sys.stdout if asked else sys.stderr)  # fmt: skip
        return 0 if asked else 2
    differing = 0
    for path in paths:
        try:
            done = replay(Path(path).read_bytes())
        except OSError as error:
            print(f"{path}: {error.strerror}", file=sys.stderr)
            differing += 1
            continue
        except KvShareError as error:
            print(f"{path}: damaged, or no log of this version: {error}", file=sys.stderr)
            differing += 1
            continue
        who = "router" if done.node is None else f"node {done.node}"
        counts = f"{done.event_count} inputs, {done.effect_count} effects, {len(done.mismatches)} mismatches"
        print(f"{path}: {who}, {counts}")
        for row in done.mismatches[:3]:
            print(f"  input {row.index} ({row.kind} at {row.now_us} us) now gives {row.decided}")
        differing += bool(done.mismatches)
    return min(differing, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
