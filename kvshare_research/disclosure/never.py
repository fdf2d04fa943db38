"""Nothing a tenant wrote is ever shared beyond its scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.ports import Disclosure


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NeverDisclosure(Disclosure):
    """Releases nothing, ever; spends no budget."""

    def released(self, now_us: int) -> frozenset[bytes]:
        return frozenset()
