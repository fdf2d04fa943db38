"""R2: GORGO v1's worked example, by the selector and cost terms that the fleet runs."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from experiments.table import show
from kvshare_research.selector.gorgo_v1 import GorgoV1
from kvshare_research.testing.tables import table_of

PROMPT_TOKENS = 1_000
REGIONS = {"US-West": (3, 0.05), "Israel": (183, 0.80), "Germany": (281, 0.60)}  # RTT in ms, cached share


def costs_ms(prefill_ms_per_token: float) -> dict[str, float]:
    """RTT + t_p * uncached tokens of each region."""
    return {name: rtt + prefill_ms_per_token * PROMPT_TOKENS * (1 - hit) for name, (rtt, hit) in REGIONS.items()}


def chosen(prefill_ms_per_token: float) -> str:
    """The region that the shipped policy picks for a client elsewhere."""
    rows = [
        {"executor": i, "action": 0, "rtt_us": rtt * 1_000, "uncached_tokens": round(PROMPT_TOKENS * (1 - hit))}
        for i, (rtt, hit) in enumerate(REGIONS.values())
    ]
    table = replace(table_of(rows, token_count=PROMPT_TOKENS), ingress=len(rows))
    return list(REGIONS)[GorgoV1(prefill_ms_per_token=prefill_ms_per_token).select(table)]


def run() -> dict[str, float]:
    """Costs at the 70B model's .5 ms a token, and whether the near region wins at the 7B model's .094."""
    found = {f"{name}, ms at .5 ms a token": cost for name, cost in costs_ms(0.5).items()}
    found["Israel is chosen at .5"] = float(chosen(0.5) == "Israel")
    found["US-West is chosen at .094"] = float(chosen(0.094) == "US-West")
    return found


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
