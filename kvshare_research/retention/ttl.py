"""Time to live by class: a block is expected back within the time that its kind of text is reused in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import BlockView, Retention
from kvshare_research.core.rights import SESSION


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TtlRetention(Retention):
    """Keeps by last use plus a time by class: what expires first goes first, expired or not (room is never left idle).

    Reuse is predictable by the kind of request (KV Cache in the Wild, arXiv 2506.02634, section 5, proposes eviction by
    category). Of that a node knows the level of a block's scope; so the class of a system prompt is public or group, of
    a conversation tenant, user or session. `ttl_us` gives a time for each level, widest first.
    """

    ttl_us: tuple[int, ...]

    ages: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if len(self.ttl_us) != SESSION + 1 or min(self.ttl_us) < 0:
            raise ConfigError(f"`ttl_us` is `{list(self.ttl_us)}`, expected {SESSION + 1} times, for public to session")

    def score(self, block: BlockView, now_us: int) -> float:
        return float(block.used_us + self.ttl_us[min(block.level, SESSION)])
