"""One row per case (seeds pooled): everything the tables and plots show, each number with its sample count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from kvshare_research.core.nouns import Action, MissReason, Outcome, Status

from . import statistics
from .node_load import NodeLoad, node_load
from .pairing import Group, Pair, RequestKey, find_baseline, group_cases, pair
from .records import BASELINE, CaseKey, CaseResult
from .resampling import Floats
from .statistics import Estimate, PredictionError, Quantiles
from .steady import Steadiness, steadiness

COMPONENTS = ("route", "queue", "fetch", "prefill", "merge", "held")  # of TTFT; the overlap is taken off fetch


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Prompt tokens of the finished requests, split. computed + reused = prompt; same + cross = reused."""

    prompt: int
    computed: int
    resident: int
    routed: int
    pulled: int
    same_tenant: int
    cross_tenant: int
    missed: tuple[tuple[MissReason, int], ...]

    @property
    def reused(self) -> int:
        return self.resident + self.routed + self.pulled

    @property
    def unexplained(self) -> int:
        """Computed tokens that carry no reason; 0 when every miss was accounted for."""
        return self.computed - sum(count for _, count in self.missed)

    @property
    def share(self) -> float:
        return self.reused / self.prompt if self.prompt else math.nan


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Against the paired baseline. Prefill latency is what getting the prefix took: fetch + prefill - overlap + merge.

    `bound` is the share of that latency which reuse can save at most when idle: with r_i the reused share of
    request i, 1 - median((1 - r_i) b_i) / median(b_i), since prefill cost grows at least linearly with length.
    `excess` = saved - bound, resampled together: a low end above 0 contradicts the bound.
    """

    baseline_note: str
    pairs: int
    prefill_share: Estimate
    prefill_us: Estimate
    ttft_share: Estimate
    ttft_us: Estimate
    bound: float
    excess: Estimate

    @property
    def breaks_bound(self) -> bool:
        return self.excess.has_interval and self.excess.low > 0.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whether reuse changed the answer. `compared` counts requests with output tokens in both cases."""

    compared: int
    identical: int
    logit_pairs: int
    largest_logit_difference: float  # NaN if nothing could be compared
    not_a_number: int  # requests whose logits are not finite, on either side


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Quoted against measured TTFT: on requests that calibration has seen, and on those it has not."""

    fit: PredictionError
    unseen: PredictionError


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """KV bytes stored per unique byte at the end of a run (1 = no duplicate), mean over seeds; NaN if not counted."""

    per_node: tuple[float, ...]
    fleet: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case with its seeds pooled. Times in us, bytes in bytes; None: no baseline to compare with."""

    key: CaseKey
    seeds: tuple[int, ...]
    partial: bool
    partial_reasons: tuple[str, ...]
    content_known: bool  # whether what prompts have in common is known at all
    expected: int
    done: int
    rejected: int
    failed: int
    refusals: tuple[tuple[str, int], ...]  # (reason, requests), most frequent first
    ttft: Quantiles
    shaped: int  # answers that were to be told no sooner than a given time
    late: int  # of those, the ones that were not there by then
    components_us: tuple[tuple[str, float], ...]  # mean, measured; with `other` they sum to the mean TTFT
    quoted_us: tuple[tuple[str, float], ...]  # mean, predicted
    reuse: Reuse
    savings: Savings | None
    identity: Identity | None
    wire_bytes: int
    planned_bytes: int
    pulled_bytes: int
    storage: Storage
    actions: tuple[tuple[Action, int], ...]
    prediction: Prediction
    decide: Quantiles
    decide_share: float  # of TTFT, summed over requests; NaN if there is none
    steadiness: Steadiness | None  # None when idle
    fairness: float  # Jain index of the tenants' mean TTFT
    rate_per_s: float | None
    ttft_samples_us: tuple[int, ...]
    reuse_share: Estimate  # reused over prompt tokens, as `reuse.share`
    node_load: NodeLoad | None  # of the first seed; None when idle

    @property
    def idle(self) -> bool:
        """Whether each request came after the one before had ended; not where arrivals are those of a trace."""
        return self.key.utilisation is None and not self.key.recorded and self.steadiness is None


def prefill_latency_us(outcome: Outcome) -> int:
    """Time spent to have the prompt's KV: without queueing, without the way to the executor."""
    return outcome.fetch_us + outcome.prefill_us - outcome.overlap_us + outcome.merge_us


def reuse_of(outcomes: Iterable[Outcome]) -> Reuse:
    """Token split of finished requests."""
    rows = list(outcomes)
    missed: Counter[MissReason] = Counter()
    for outcome in rows:
        for reason, tokens in outcome.missed:
            missed[MissReason(reason)] += tokens
    return Reuse(
        prompt=sum(o.prompt_tokens for o in rows),
        computed=sum(o.computed_tokens for o in rows),
        resident=sum(o.resident_tokens for o in rows),
        routed=sum(o.routed_tokens for o in rows),
        pulled=sum(o.pulled_tokens for o in rows),
        same_tenant=sum(o.same_tenant_tokens for o in rows),
        cross_tenant=sum(o.cross_tenant_tokens for o in rows),
        missed=tuple(sorted(missed.items())),
    )


def savings_of(pairs: Sequence[Pair], note: str) -> Savings:
    """Paired comparison of two groups."""
    seeds = np.array([key.seed for key, _, _ in pairs], dtype=np.int64)
    mine = np.array([prefill_latency_us(o) for _, o, _ in pairs], dtype=np.float64)
    theirs = np.array([prefill_latency_us(b) for _, _, b in pairs], dtype=np.float64)
    ttft = np.array([o.ttft_us for _, o, _ in pairs], dtype=np.float64)
    ttft_base = np.array([b.ttft_us for _, _, b in pairs], dtype=np.float64)
    computed = np.array([o.computed_tokens / o.prompt_tokens if o.prompt_tokens else 1.0 for _, o, _ in pairs])
    # What recomputing only the missing share would take at the baseline's speed: no plan can be below it when idle.
    floor = computed * theirs

    def saved(
        mine: Floats, theirs: Floats, less: Floats, ttft: Floats, ttft_base: Floats, ttft_less: Floats, floor: Floats
    ) -> tuple[Floats, ...]:
        bound, excess = 1.0 - floor / theirs, (floor - mine) / theirs
        return 1.0 - mine / theirs, less, 1.0 - ttft / ttft_base, ttft_less, bound, excess

    columns = (mine, theirs, theirs - mine, ttft, ttft_base, ttft_base - ttft, floor)
    prefill_share, prefill_less, ttft_share, ttft_less, bound, excess = statistics.of_medians(
        saved, *columns, groups=seeds
    )
    return Savings(
        baseline_note=note,
        pairs=len(pairs),
        prefill_share=prefill_share,
        prefill_us=prefill_less,
        ttft_share=ttft_share,
        ttft_us=ttft_less,
        bound=bound.value,
        excess=excess,
    )


def identity_of(pairs: Sequence[Pair]) -> Identity:
    """Compare answers (their tokens, or the digests that stand for them) and first-token logits request by request."""
    compared = identical = logit_pairs = not_a_number = 0
    largest = math.nan
    for _, mine, other in pairs:
        answers = [(o.output_tokens, o.output_digest) for o in (mine, other)]
        if any(tokens or digest for tokens, digest in answers):
            compared += 1
            identical += answers[0] == answers[1]
        if not mine.logit_fingerprint or len(mine.logit_fingerprint) != len(other.logit_fingerprint):
            continue
        gap = np.abs(np.subtract(mine.logit_fingerprint, other.logit_fingerprint)).max()
        if not np.isfinite(gap):
            not_a_number += 1
            continue
        logit_pairs += 1
        largest = float(gap) if math.isnan(largest) else max(largest, float(gap))
    return Identity(
        compared=compared,
        identical=identical,
        logit_pairs=logit_pairs,
        largest_logit_difference=largest,
        not_a_number=not_a_number,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def measured_components(outcomes: Sequence[Outcome]) -> tuple[tuple[str, float], ...]:
    """Mean of each component; fetch without the part hidden behind prefill, `other` is the rest of TTFT."""
    if not outcomes:
        return ()
    parts = {name: _mean([getattr(o, f"{name}_us") for o in outcomes]) for name in COMPONENTS}
    parts["fetch"] -= _mean([o.overlap_us for o in outcomes])
    parts["other"] = _mean([o.ttft_us for o in outcomes]) - sum(parts.values())
    return tuple(parts.items())


def quoted_components(outcomes: Sequence[Outcome]) -> tuple[tuple[str, float], ...]:
    """Mean of each predicted component, in the same split; requests without a quote are left out."""
    quoted = [dict(o.quoted_us) for o in outcomes if o.quoted_us]
    if not quoted:
        return ()
    parts = {name: _mean([q.get(f"{name}_us", q.get(name, 0)) for q in quoted]) for name in COMPONENTS}
    parts["fetch"] -= _mean([q.get("overlap_us", q.get("overlap", 0)) for q in quoted])
    total = _mean([o.quoted_ttft_us for o in outcomes if o.quoted_us])
    parts["other"] = total - sum(parts.values())
    return tuple(parts.items())


def storage_of(cases: Sequence[CaseResult]) -> Storage:
    """Stored blocks per distinct content, by node and for the fleet."""

    def ratio(stored: int, unique: int) -> float:
        return stored / unique if unique else math.nan

    counted = [c.counters for c in cases if c.counters.node_unique_blocks]
    width = max((len(c.node_unique_blocks) for c in counted), default=0)
    per_node = []
    for node in range(width):
        ratios = [
            ratio(c.node_stored_blocks[node], c.node_unique_blocks[node])
            for c in counted
            if node < min(len(c.node_unique_blocks), len(c.node_stored_blocks))
        ]
        per_node.append(_mean([r for r in ratios if not math.isnan(r)]))
    fleet = [ratio(sum(c.node_stored_blocks), c.fleet_unique_blocks) for c in counted]
    return Storage(per_node=tuple(per_node), fleet=_mean([r for r in fleet if not math.isnan(r)]))


def prediction_of(group: Group) -> Prediction:
    """Errors split by whether calibration has seen the request."""
    seen: list[tuple[int, int]] = []
    unseen: list[tuple[int, int]] = []
    for case in group.cases:
        fit = frozenset(case.fit_request_ids)
        for o in case.done():
            (seen if o.request_id in fit else unseen).append((o.quoted_ttft_us, o.ttft_us - o.held_us))
    fit_error, unseen_error = (
        statistics.percentage_error([q for q, _ in rows], [m for _, m in rows]) for rows in (seen, unseen)
    )
    return Prediction(fit=fit_error, unseen=unseen_error)


def least_steady(by_seed: Iterable[Steadiness | None]) -> Steadiness | None:
    """None when every seed is idle, or nothing finished."""
    found = [f for f in by_seed if f is not None]
    return max(found, key=lambda f: (f.queue.saturated, f.matters, np.nan_to_num(f.queue.growth_us)), default=None)


def _fairness(done: Sequence[tuple[RequestKey, Outcome]]) -> float:
    by_tenant: dict[int, list[float]] = {}
    for _, o in done:
        by_tenant.setdefault(o.tenant_id, []).append(o.ttft_us)
    return statistics.jain_index([_mean(times) for times in by_tenant.values()])


def _reuse_share(done: Sequence[tuple[RequestKey, Outcome]]) -> Estimate:
    columns = ([o.computed_tokens for _, o in done], [o.prompt_tokens for _, o in done])
    share = lambda computed, prompt: (1.0 - computed / prompt,)  # noqa: E731
    return statistics.of_sums(share, *columns, groups=[key.seed for key, _ in done])[0]


def _decisions(group: Group) -> list[int]:
    counted = [t for c in group.cases for t in c.counters.decide_us]
    return counted or [o.decide_us for _, o in group.done if o.decide_us > 0]


def row_of(group: Group, groups: Sequence[Group]) -> Row:
    """The row of one group; `groups` are all groups of the report, among which the baseline is found."""
    done = group.done
    outcomes = [o for _, o in done]
    all_outcomes = [o for c in group.cases for o in c.measured()]
    # A complete case is never compared with a partial one.
    comparable = [g for g in groups if group.incomplete or not g.incomplete]
    baseline = find_baseline(group.key, comparable) if group.key.selector != BASELINE else None
    pairs = pair(group, baseline[0]) if baseline else ()
    decisions = _decisions(group)
    total_ttft = sum(o.ttft_us for o in outcomes)
    steady, first = [steadiness(c.outcomes) for c in group.cases], group.cases[0]
    refusals = Counter(o.reason or "no reason given" for o in all_outcomes if o.status != Status.DONE)
    return Row(
        key=group.key,
        seeds=tuple(c.seed for c in group.cases),
        partial=group.incomplete,
        partial_reasons=tuple(sorted({c.partial_reason for c in group.cases if c.partial_reason})),
        content_known=first.content_known,
        expected=sum(c.expected_requests if c.expected_requests is not None else len(c.outcomes) for c in group.cases),
        done=len(outcomes),
        rejected=sum(o.status == Status.REJECTED for o in all_outcomes),
        failed=sum(o.status == Status.FAILED for o in all_outcomes),
        refusals=tuple(refusals.most_common()),
        ttft=statistics.quantiles([o.ttft_us for o in outcomes], [key.seed for key, _ in done]),
        shaped=sum(o.shape_us > 0 for o in outcomes),
        late=sum(o.shape_us > 0 and o.held_us == 0 for o in outcomes),
        components_us=measured_components(outcomes),
        quoted_us=quoted_components(outcomes),
        reuse=reuse_of(outcomes),
        savings=savings_of(pairs, baseline[1]) if baseline else None,
        identity=identity_of(pairs) if baseline else None,
        wire_bytes=sum(c.counters.wire_bytes for c in group.cases),
        planned_bytes=sum(c.counters.planned_bytes for c in group.cases),
        pulled_bytes=sum(o.pulled_bytes for o in outcomes),
        storage=storage_of(group.cases),
        actions=tuple(sorted(Counter(o.action for o in outcomes).items())),
        prediction=prediction_of(group),
        decide=statistics.quantiles(decisions),
        decide_share=sum(o.decide_us for o in outcomes) / total_ttft if total_ttft else math.nan,
        steadiness=least_steady(steady),
        fairness=_fairness(done),
        rate_per_s=next((c.rate_per_s for c in group.cases if c.rate_per_s is not None), None),
        ttft_samples_us=tuple(o.ttft_us for o in outcomes),
        reuse_share=_reuse_share(done),
        node_load=node_load(first.outcomes, len(first.counters.node_stored_blocks)) if steady[0] else None,
    )


def summarise(cases: Iterable[CaseResult]) -> tuple[Row, ...]:
    """One row per case, in order of first appearance. Deterministic: equal cases give equal rows."""
    groups = group_cases(cases)
    return tuple(row_of(group, groups) for group in groups)
