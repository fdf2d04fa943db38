"""Answers that take as long as a miss would: how long a hit in a group's text is held back before it is told.

Own text and promoted prefixes need no delay (their presence is no secret, or bounded by epsilon); text granted to a
group shows its members that one of them ran it. Holding back costs the time saved and keeps the computation saved.
"""

from __future__ import annotations

from kvshare_research.core.costing import PS_PER_US, PrefillCoefficients, prefill_ps


def held_us(coefficients: PrefillCoefficients, prompt_tokens: int, reused_tokens: int, group_tokens: int) -> int:
    """Time by which an answer that reused so many tokens, of which the last `group_tokens` are a group's, was sooner
    than the answer that would have computed those; 0 where none are."""
    if not 0 <= group_tokens <= reused_tokens <= prompt_tokens:
        raise ValueError(f"{group_tokens} of {reused_tokens} reused of {prompt_tokens} tokens")
    if not group_tokens:
        return 0
    without = reused_tokens - group_tokens
    missed_ps = prefill_ps(coefficients, prompt_tokens - without, without)
    return (missed_ps - prefill_ps(coefficients, prompt_tokens - reused_tokens, reused_tokens)) // PS_PER_US
