"""How fast the ranks serve, one request at a time and all at once, before any case: what calibration of bare kernels
does not show. Serving, every rank polls for messages too, and other work on the machine may have come or gone since.

Only the simulated twin of a case is told; quotes learn the pace of each node from what it reports.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from kvshare_research.core.costing import PS_PER_US, decode_ps, prefill_ps
from kvshare_research.core.nouns import Outcome, Status
from kvshare_research.cost.calibration import KNOWN_ERROR_MAX
from kvshare_research.cost.ttft import TtftCost
from kvshare_research.metrics.records import BASELINE

from .plan import IDLE, Block, Case
from .prompts import arrivals
from .settings import choice

if TYPE_CHECKING:
    from .session import Session

ALONE_REQUESTS = 7
TOGETHER_REQUESTS = 10  # a worker


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPace:
    """Thousandths of what calibration says, and how much longer prefill and decode take while all workers compute.

    `control_us` is what handing a request over takes: the median of what is left of TTFT beside its components.
    """

    prefill_permille: int = 1_000
    decode_permille: int = 1_000
    together_permille: int = 1_000
    control_us: int = 0


def measured_pace(session: Session, config: Mapping[str, Any], cost: TtftCost) -> ServingPace:
    """Prompts of the run's workload, recomputed: a few one after the other, then so many a worker all at once."""
    base = dict(config) | {"selector": choice("selector", BASELINE), "link": choice("link", "loopback")}
    workers = session.cluster.node_count
    count = ALONE_REQUESTS + TOGETHER_REQUESTS * workers
    block = Block(name="pace", requests=count)
    case = Case(
        block=block,
        utilisation=IDLE,
        overlap=None,
        selector=None,
        tenancy=None,
        link=None,
        seed=session.run.values.seed,
    )
    given = session.prompts(case, base, count)[:count]
    session.progress.stage("measuring how fast the ranks serve")
    session.cluster.reset(base)
    alone = session.cluster.play_idle(arrivals(given[:ALONE_REQUESTS], (0,) * ALONE_REQUESTS)).outcomes[1:]
    rest = given[ALONE_REQUESTS:]
    session.cluster.reset(base)
    together = session.cluster.play(arrivals(rest, (0,) * len(rest))).outcomes if workers > 1 and rest else ()
    found = pace_of(alone, together, cost)
    prefill, decode = found.prefill_permille / 1_000, found.decode_permille / 1_000
    if max(abs(prefill - 1), abs(decode - 1)) > KNOWN_ERROR_MAX:
        session.progress.say(
            f"served, a prefill takes {prefill:.2f} and an answer {decode:.2f} times what was calibrated: quotes are "
            "rough; is the machine busy with other work?"
        )
    return found


def pace_of(alone: Sequence[Outcome], together: Sequence[Outcome], cost: TtftCost) -> ServingPace:
    """From requests served one at a time, and from those served all at once, of which the first and the last on each
    node do not count: not all others compute beside them. What was not measured is as calibrated."""
    alone = [o for o in alone if o.status == Status.DONE and o.prefill_us > 0]
    if not alone:
        return ServingPace()
    prefill = statistics.median(o.prefill_us / _prefill_us(o, cost) for o in alone)
    decodes = [o.decode_us / _decode_us(o, cost) for o in alone if _decode_us(o, cost) > 0]
    inner = []
    for node in {o.executor for o in together}:
        rows = [o for o in together if o.executor == node and o.status == Status.DONE]
        inner += sorted(rows, key=lambda o: o.arrival_us + o.end_to_end_us - o.held_us)[1:-1]
    decode = statistics.median(decodes) if decodes else 1.0
    ratios = [
        (o.prefill_us + o.decode_us) / (prefill * _prefill_us(o, cost) + decode * _decode_us(o, cost)) for o in inner
    ]
    known = (o.queue_us + o.fetch_us + o.prefill_us + o.merge_us - o.overlap_us for o in alone)
    return ServingPace(
        prefill_permille=round(1_000 * prefill),
        decode_permille=round(1_000 * decode),
        together_permille=max(1_000, round(1_000 * statistics.median(ratios))) if ratios else 1_000,
        control_us=round(
            statistics.median(max(0, o.ttft_us - o.held_us - us) for o, us in zip(alone, known, strict=True))
        ),
    )


def _prefill_us(outcome: Outcome, cost: TtftCost) -> float:
    cached = outcome.prompt_tokens - outcome.computed_tokens
    return prefill_ps(cost.coefficients, outcome.computed_tokens, cached) / PS_PER_US


def _decode_us(outcome: Outcome, cost: TtftCost) -> float:
    steps = len(outcome.output_tokens) - 1
    return decode_ps(cost.decode_step_ps, cost.decode_ps_per_token, max(0, steps), outcome.prompt_tokens) / PS_PER_US
