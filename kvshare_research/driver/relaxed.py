"""A relaxation of the simulated fleet whose times no policy can beat, request by request.

No queue: every request has an engine to itself from its arrival. Infinite links: the client is beside it, and moving
bytes takes no time. Infinite cache: every block that a request has asked for is at hand from that request's arrival.
In the fleet a block that nobody has asked for before must be computed after the arrival, by whomever, and each launch
of an engine needs the blocks before it. So the first token takes at least the launches from some depth k that was asked
for before to the end of the prompt, one after the other, in whatever pieces: `least_prefill_ps`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from kvshare_research.core.costing import PrefillCoefficients, up_to_us
from kvshare_research.core.nouns import Action, Chain, Outcome, Request, Status

from .simulator import Simulator
from .simulator_engine import EngineModel


def least_prefill_ps(coefficients: PrefillCoefficients, token_count: int, cached_tokens: int) -> int:
    """The least time of any launches that together compute [k, token_count), over all k up to `cached_tokens`.

    Pieces s_1 + s_2 + ... = s that begin at k cost at least c0 + c1*s + c2*k + c3*s*k + c3*s*s/2 if c4 >= c3/2, however
    they are cut; else the last term is c4*s*s, one piece. As a function of k that is concave: an end is the least.
    """

    def from_depth(cached: int) -> int:
        new = token_count - cached
        square = min(2 * coefficients.c4_ps_per_token2, coefficients.c3_ps_per_token2) * new * new // 2
        return (
            coefficients.c0_ps
            + coefficients.c1_ps_per_token * new
            + coefficients.c2_ps_per_token * cached
            + coefficients.c3_ps_per_token2 * new * cached
            + square
        )

    return min(from_depth(0), from_depth(cached_tokens))


def least_decode_ps(engine: EngineModel, token_count: int, steps: int) -> int:
    """The least time of an answer's further tokens: alone, and each beside a launch where that is quicker."""
    each = min(engine.decode_step_ps, engine.prefill.c0_ps) + engine.decode_ps_per_request
    return steps * each + engine.decode_ps_per_token * (steps * token_count + steps * (steps - 1) // 2)


@final
@dataclass(slots=True, kw_only=True)
class Relaxed(Simulator):
    """The fleet of `selector=bound`: requests end as they arrive, in the least time they could take anywhere."""

    origins: dict[bytes, int] = field(default_factory=dict)  # of every block asked for so far: by which tenant

    def _arrive(self, request: Request, chain: Chain, now_us: int) -> None:
        self.injected += 1
        size, hashes = chain.block_tokens, chain.block_hashes(0, chain.block_count)
        known: list[int] = []
        for block in hashes[: (request.token_count - 1) // size]:
            if block not in self.origins:
                break
            known.append(self.origins[block])
        for block in hashes:
            self.origins.setdefault(block, request.tenant_id)
        own = sum(tenant == request.tenant_id for tenant in known)
        ttft_ps = least_prefill_ps(self.engine.prefill, request.token_count, len(known) * size)
        decode_ps = least_decode_ps(self.engine, request.token_count, max(0, request.output_tokens_max - 1))
        outcome = Outcome(
            request_id=request.request_id, tenant_id=request.tenant_id, application=request.application,
            status=Status.DONE, action=Action.RESIDENT if known else Action.RECOMPUTE, executor=request.ingress,
            ingress=request.ingress, arrival_us=request.arrival_us, ttft_us=up_to_us(ttft_ps),
            end_to_end_us=up_to_us(ttft_ps + decode_ps), prefill_us=up_to_us(ttft_ps), decode_us=up_to_us(decode_ps),
            prompt_tokens=request.token_count, computed_tokens=request.token_count - len(known) * size,
            resident_tokens=len(known) * size, same_tenant_tokens=own * size,
            cross_tenant_tokens=(len(known) - own) * size,
        )  # fmt: skip
        self.outcomes.append(outcome)
