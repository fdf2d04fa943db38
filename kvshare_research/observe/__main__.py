"""`python -m kvshare_research.observe observe.endpoint=tcp://host:5557`: watch engines, say what sharing would save."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from kvshare_research.cli import app


@app("observe", module="kvshare_research.observe")
def command(cfg: Any, comm: Any) -> int:
    """Watches until stopped (or `observe.stop_after_s`) and reports; returns the exit code."""
    from omegaconf import OmegaConf

    from kvshare_research.build import build

    from .watch import Watcher

    data: Any = OmegaConf.to_container(cfg)
    given = build(data["observe"], "observe")
    watcher = Watcher(given, build(data["index"], "index"), data["seed"])
    print(f"watching {', '.join(given.endpoints)}", flush=True)
    started = told = time.monotonic()
    said = ""
    try:
        while given.stop_after_s is None or time.monotonic() - started < given.stop_after_s:
            watcher.step(wait_ms=100)
            if time.monotonic() - told >= given.report_every_s:
                told = time.monotonic()
                said = _say(text_of(watcher.report()), said)
    except (KeyboardInterrupt, SystemExit):
        pass  # being told to end is how a watch ends
    finally:
        report = watcher.report()
        watcher.close()
    _say(text_of(report), said)
    if given.out:
        Path(given.out).parent.mkdir(parents=True, exist_ok=True)
        Path(given.out).write_text(json.dumps(report, indent=1))
    return 0


def _say(text: str, said: str) -> str:
    """An account that is not the one said before is printed; returns what has been said last."""
    if text != said:
        print(text, flush=True)
    return text


def text_of(report: dict[str, Any]) -> str:
    """The account for people."""
    lines = [f"{report['distinct_blocks']} distinct blocks, {report['copies_per_block']:.2f} copies of each"]
    for name, node in report["nodes"].items():
        lines.append(
            f"  {name}: {node['held_blocks']} blocks, last event {node['lag_s'] * 1e3:.0f} ms old when applied,"
            f" {node['waiting_for_parents']} events wait for a parent"
        )
    for tenant, row in report["tenants"].items():
        lines.append(
            f"  tenant {tenant}: {row['stored_blocks']} blocks computed, {row['duplicate_share']:.1%} of them stood on"
            f" another node; sharing would have saved {row['sharing_would_have_saved_s']:.3f} s"
        )
    for name, row in report["streams"].items():
        lines.append(f"  stream {name}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
    lines += [f"  silent: {endpoint}" for endpoint in report["silent"]]
    odd = {**report["frames"], **report["anomalies"]}
    lines.append("  counted: " + (", ".join(f"{key} {value}" for key, value in sorted(odd.items())) or "nothing"))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command())
