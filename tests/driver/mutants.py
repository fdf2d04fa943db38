"""Machines with planted mistakes against replay, recorded in virtual time: `python -m tests.driver.mutants NAME FILE`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from msgspec.structs import replace

from kvshare_research.core import messages as m
from kvshare_research.core.choosing import Choosing
from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector
from kvshare_research.core.router import Router
from kvshare_research.driver.assembly import Config, Place
from kvshare_research.driver.log import EventLog
from kvshare_research.selector.cheapest import Cheapest
from tests.core.fleet import BLOCK_BYTES, ask, fleet


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ByClock(Selector):
    """Chooses by the time of day."""

    def select(self, table: QuoteTable) -> int:
        return time.perf_counter_ns() // 1000 % len(table)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BySet(Selector):
    """Chooses whatever a set of words lists first."""

    def select(self, table: QuoteTable) -> int:
        return int(next(iter({f"{row}" for row in np.arange(len(table))})))


class Sound:
    """The router as it ships."""

    selector: Selector = Cheapest()

    def router(self, config: Config, place: Place) -> Router:
        made = fleet(place.node_count).router
        made.choosing = Choosing(self.selector)
        return made

    def performed(self, effects: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the driver makes of the effects before it performs and records them."""
        return effects


class ReadsTheClock(Sound):
    selector = ByClock()


class IteratesOverASet(Sound):
    selector = BySet()


class DriverDecides(Sound):
    """A driver that leaves out what the router wanted reused."""

    def performed(self, effects: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            replace(e, plan=replace(e.plan, resident_blocks=0)) if isinstance(e, m.Dispatch) else e for e in effects
        )


def record(name: str, path: Path) -> None:
    """A fleet of three nodes serves thirty requests; the router's log is in `path`."""
    assembly: Sound = globals()[name]()
    place = Place(node=None, node_count=3, capacity_blocks=64, block_bytes=BLOCK_BYTES, incarnation=1)
    log = EventLog(f"tests.driver.mutants:{name}", {}, place)
    sim = fleet(3)
    router = assembly.router({}, place)

    class Recorded:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(router, attribute)

        def handle(self, event: m.RouterEvent, now_us: int) -> tuple[m.RouterEffect, ...]:
            effects = assembly.performed(router.handle(event, now_us))
            log.record(now_us, event, effects)
            return effects

    sim.router = Recorded()  # type: ignore[assignment]
    for number in range(30):
        ask(sim, number, tenant=1 + number % 2, prefix=f"p{number % 3}", at_us=1 + 50_000 * number, ingress=number % 3)
    sim.run()
    path.write_bytes(log.to_bytes())


if __name__ == "__main__":
    record(sys.argv[1], Path(sys.argv[2]))
