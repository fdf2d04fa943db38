"""Where users vote, those of one tenant must not publish it by themselves: how much of their votes counts.

Distinct tenants cannot simply be counted beside a noisy threshold: that a second one is there may be one user's doing,
and would give that user away. The rule below moves by no more than a vote moves, so a mechanism keeps its epsilon. The
votes of the largest tenant count together as one at most; a name that only one tenant has asked for is one vote, and
the mechanisms release one vote with probability delta at most (`after_k`: never).
"""

from __future__ import annotations


def apart(total: float, largest: float) -> float:
    """The votes for a name that count, of `total`, of which one tenant has cast `largest` and no other more."""
    return total - largest + min(largest, 1)
