"""Prefetches are scored by what requests asked for afterwards, at the right node, within the horizon."""

from __future__ import annotations

from kvshare_research.core.nouns import Chain, Outcome, Status
from kvshare_research.metrics.prefetching import Issued, score

BLOCK = 16
A, B = (bytes([i]) * 16 for i in (1, 2))
CHAIN = Chain(hashes=A + B, scope_ends=((0, 2),), block_tokens=BLOCK)
ONE = Issued(prefetch_id=1, node=1, tenant_id=1, name=B, depth_blocks=2, at_us=100, horizon_us=1_000)


def asked(at_us: int, *, node: int = 1, tenant: int = 1, resident: int = 2) -> tuple[Outcome, Chain]:
    tokens = 2 * BLOCK
    found = resident * BLOCK
    made = Outcome(
        request_id=at_us, tenant_id=tenant, application="", status=Status.DONE, executor=node, arrival_us=at_us, ttft_us=50,
        prompt_tokens=tokens, resident_tokens=found, computed_tokens=tokens - found, same_tenant_tokens=found,
    )  # fmt: skip
    return made, CHAIN


def counts(*served: tuple[Outcome, Chain], landed: bool = True) -> tuple[int, int, int, int]:
    found = score([ONE], frozenset([1] if landed else []), served, BLOCK)
    assert found.issued == 1
    return found.useful, found.on_time, found.named, found.placed


def test_in_time_at_its_node() -> None:
    assert counts(asked(500)) == (1, 1, 1, 1)
    assert counts(asked(60)) == (1, 1, 1, 1), "the request was still waiting when it was issued"


def test_late_is_useful_and_not_on_time() -> None:
    assert counts(asked(500, resident=1)) == (1, 0, 1, 1)
    assert counts(asked(500), landed=False) == (1, 0, 1, 1), "it was there for another reason"
    assert counts(asked(300, resident=0), asked(500)) == (1, 0, 1, 1), "the first who asks counts"


def test_elsewhere_by_another_too_late_or_too_early() -> None:
    assert counts(asked(500, node=0)) == (0, 0, 1, 0)
    assert counts(asked(500, tenant=2)) == (1, 1, 0, 0)
    assert counts(asked(1_200)) == (0, 0, 0, 0)
    assert counts(asked(40)) == (0, 0, 0, 0), "it had been answered"


def test_shares() -> None:
    other = Issued(prefetch_id=2, node=0, tenant_id=1, name=A, depth_blocks=1, at_us=100, horizon_us=1_000)
    found = score([ONE, other], frozenset([1, 2]), [asked(500)], BLOCK)
    assert (found.accuracy, found.timeliness, found.destination) == (0.5, 1.0, 0.5)
    nothing = score([], frozenset(), [], BLOCK)
    assert (nothing.accuracy, nothing.timeliness, nothing.destination) == (0.0, 0.0, 0.0)
