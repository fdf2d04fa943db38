"""What a way of serving takes: whole picoseconds, only + and *, rounded up once to microseconds.

These are the functions that quote (compiled as they stand), that calibration fits and that the proof tool runs on
symbolic integers; they hold no float, no table and no loop.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

PS_PER_US = 1_000_000
Amount = TypeVar("Amount", int, NDArray[np.int64])


class PrefillCoefficients(NamedTuple):
    """The fitted prefill model; all are >= 0, so that more work never takes less time."""

    c0_ps: int  # per launch of a prefill
    c1_ps_per_token: int  # per new token
    c2_ps_per_token: int  # per cached token
    c3_ps_per_token2: int  # per pair of a new and a cached token
    c4_ps_per_token2: int  # per pair of new tokens; about half of c3 for causal attention


class Choice(NamedTuple):
    """What ranks a quoted row; distinct rows of one table differ in it."""

    ttft_us: int
    moved_bytes: int
    action: int
    executor: int
    source: int


def prefill_ps(coefficients: PrefillCoefficients, new_tokens: int, cached_tokens: int) -> int:
    """Time to compute `new_tokens` that attend to `cached_tokens` before them; nothing to compute takes no time.

    c0 + c1*s + c2*k + c3*s*k + c4*s*s (Preble, arXiv 2407.00023, fits the same shape; a quadratic in the prompt is
    Mooncake's flop count, arXiv 2407.00079).
    """
    if new_tokens <= 0:
        return 0
    return (
        coefficients.c0_ps
        + coefficients.c1_ps_per_token * new_tokens
        + coefficients.c2_ps_per_token * cached_tokens
        + coefficients.c3_ps_per_token2 * new_tokens * cached_tokens
        + coefficients.c4_ps_per_token2 * new_tokens * new_tokens
    )


def paced(coefficients: PrefillCoefficients, pace_permille: int) -> PrefillCoefficients:
    """The coefficients of a node that takes so many thousandths of the model's time, each rounded down."""
    return PrefillCoefficients(
        coefficients.c0_ps * pace_permille // 1000,
        coefficients.c1_ps_per_token * pace_permille // 1000,
        coefficients.c2_ps_per_token * pace_permille // 1000,
        coefficients.c3_ps_per_token2 * pace_permille // 1000,
        coefficients.c4_ps_per_token2 * pace_permille // 1000,
    )


def decode_ps(step_ps: int, ps_per_token: int, steps: int, context_tokens: int) -> int:
    """Time to decode `steps` tokens one after the other, the first of them with `context_tokens` before it.

    Each reads the weights (`step_ps`) and the keys and values before it.
    """
    return steps * (step_ps + ps_per_token * context_tokens) + ps_per_token * (steps * (steps - 1) // 2)


def up_to_us(time_ps: int) -> int:
    """The least whole number of microseconds that is not shorter."""
    return -(-time_ps // PS_PER_US)


def setup_ps(rtt_us: int, inflight_bytes: int, ps_per_byte: int) -> int:
    """Time before the first byte of a new fetch counts: one round trip, then what is under way on the link.

    Charging every byte in flight bounds fair sharing from above, whatever the number of flows.
    """
    return rtt_us * PS_PER_US + inflight_bytes * ps_per_byte


def fetch_ps(start_ps: int, moved_bytes: int, ps_per_byte: int) -> int:
    """Time until the last of `moved_bytes` has arrived; moving nothing takes no time."""
    if moved_bytes <= 0:
        return 0
    return start_ps + moved_bytes * ps_per_byte


def fetch_us(rtt_us: int, inflight_bytes: int, ps_per_byte: int, moved_bytes: int) -> int:
    """`fetch_ps` of a fetch from one source over one link, in microseconds, rounded up once."""
    return up_to_us(fetch_ps(setup_ps(rtt_us, inflight_bytes, ps_per_byte), moved_bytes, ps_per_byte))


def overlap_us(queue: int, fetch: int, front: int) -> int:
    """What is counted twice: a fetch runs while its request waits and while the front of its prefix is computed."""
    return min(fetch, queue + front)


def ttft_us(route: int, queue: int, fetch: int, front: int, suffix: int, merge: int) -> int:
    """Time to first token from its components, in microseconds: a fetch starts on admission, beside queue and front."""
    return route + max(fetch, queue + front) + suffix + merge


def priced_us(ttft: Amount, prefill: Amount, held_up_requests: Amount, weigh_delay_permille: int) -> Amount:
    """TTFT, and so many thousandths of what it takes from others: each answer decoded there waits for the prefill.

    At 1000 this is how much later all first tokens and answers together are for this request, but for those that end
    before it; in economics, its marginal external cost (Pigou, The Economics of Welfare, 1920, part II).
    """
    return ttft + prefill * held_up_requests * weigh_delay_permille // 1000


def better(best: Choice, candidate: Choice) -> Choice:
    """The smaller of two by TTFT, then bytes moved, then action, executor and source: a total order.

    So the winner of a fold does not depend on the order of rows, and computing (action 0, no bytes) wins its ties.
    """
    if candidate.ttft_us != best.ttft_us:
        return candidate if candidate.ttft_us < best.ttft_us else best
    if candidate.moved_bytes != best.moved_bytes:
        return candidate if candidate.moved_bytes < best.moved_bytes else best
    if candidate.action != best.action:
        return candidate if candidate.action < best.action else best
    if candidate.executor != best.executor:
        return candidate if candidate.executor < best.executor else best
    return candidate if candidate.source < best.source else best
