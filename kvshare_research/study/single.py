"""The configuration as it stands, once."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """One run, nothing varied."""
