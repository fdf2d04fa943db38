"""Mooncake's early rejection: who is turned away before its prefill, by the load of now or by that to come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, final

from kvshare_research.core.errors import ConfigError


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyRejection:
    """A load is a predicted time over its objective; above 1 a request is turned away; changes nothing.

    Mooncake (arXiv 2407.00079, section 7). `none` lets everybody in. `early` looks at what decodes now, before the
    prefill; `predicted` at what will decode when the prefill ends, if every answer takes the same time: prefills that
    end before have come, answers older than that have gone. A step over n requests takes `step_us` + n * `request_us`.
    """

    mode: Literal["none", "early", "predicted"] = "none"
    ttft_objective_us: int = 30_000_000
    tbt_objective_us: int = 100_000  # between two tokens
    step_us: int = 20_000
    request_us: int = 50

    def __post_init__(self) -> None:
        if self.ttft_objective_us < 1 or self.tbt_objective_us < 1:
            raise ConfigError("an objective of `rejection` is below 1 us, expected at least 1")

    def prefill_load(self, ttft_us: float) -> float:
        """Of a request whose first token is predicted after so long."""
        return ttft_us / self.ttft_objective_us

    def decode_load(self, batch: float) -> float:
        """Of so many requests that decode together."""
        return (self.step_us + self.request_us * batch) / self.tbt_objective_us

    def refusal(self, ttft_us: float, batch_now: float, batch_then: float) -> str:
        """Why the request is turned away; empty: it is let in. The batches count this request too."""
        if self.mode == "none":
            return ""
        if self.prefill_load(ttft_us) > 1:
            return "early rejection: first token predicted after its objective"
        if self.decode_load(batch_now if self.mode == "early" else batch_then) > 1:
            return (
                f"early rejection: {'present' if self.mode == 'early' else 'predicted'} decode load over its objective"
            )
        return ""


def decoding_at(
    at: float, first_tokens: Iterable[float], prefill_ends: Iterable[float], decode_time: float
) -> int:  # fmt: skip
    """Requests that decode at a later time: those since `first_tokens` that are not too old, and prefills ended by then
    that are not. All times in one unit."""
    staying = sum(since + decode_time > at for since in first_tokens)
    return staying + sum(end <= at < end + decode_time for end in prefill_ends)
