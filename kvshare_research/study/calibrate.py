"""Calibration before the measured cases: prefill on a worker, links between workers, the merge of landed bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvshare_research.cost.calibration import Calibration

if TYPE_CHECKING:
    from .session import Session
