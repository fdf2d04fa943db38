"""What a driver is given to build machines from configuration, on any rank and again in a replay."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kvshare_research.core.errors import ConfigError

if TYPE_CHECKING:
    from kvshare_research.core.router import Router
    from kvshare_research.core.worker import Worker
    from kvshare_research.engine.base import Engine
    from kvshare_research.events.publish import Tap
    from kvshare_research.transport.link import Link
    from kvshare_research.transport.mpi import Endpoint

Config = Mapping[str, Any]  # plain values only: it travels, is hashed and is logged; no key is ever in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a machine stands in the job; with the configuration all that decides its initial state."""

    node: int | None  # None: the router
    node_count: int
    capacity_blocks: int
    block_bytes: int
    incarnation: int


class Assembly(Protocol):
    """Builds everything a rank needs. Equal arguments give machines that decide alike."""

    def engine(self, config: Config, local_rank: int) -> Engine:
        """The loaded model of a worker; `local_rank` counts the workers on its host."""

    def worker(self, config: Config, place: Place) -> Worker: ...

    def router(self, config: Config, place: Place) -> Router: ...

    def link(self, config: Config) -> Link: ...

    def wrap(self, endpoint: Endpoint, config: Config, node: int) -> Endpoint:
        """The endpoint a worker uses; identity outside experiments that damage or delay messages."""

    def tap(self, config: Config, place: Place) -> Tap | None:
        """Where this worker publishes its pool to the outside; None: nowhere."""


def assembly_path(assembly: Assembly) -> str:
    """The `module:Class` from which `assembly_at` makes an equal one."""
    return f"{type(assembly).__module__}:{type(assembly).__qualname__}"


def assembly_at(path: str) -> Assembly:
    """The assembly of a recorded log, made anew; raises ConfigError if it cannot be imported."""
    module, _, name = path.partition(":")
    try:
        made: Assembly = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot make `{path}`: {error}; expected `module:Class`, no arguments") from error
    return made
