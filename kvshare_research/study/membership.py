"""`python -m kvshare_research.study.membership`: was a unit among those whose votes released a prefix?

Through the whole system, in virtual time or on ranks (`driver=mpi`). Each of many prefixes is asked for by the same
number of other users, and by one more by the toss of a coin. An attacker asks with each prefix before and after the
release, as two tenants, and sees time, reused tokens and place. The accountant's epsilon is the upper bound, the
attack's the lower one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.cli import app
from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Outcome, Request, Segment, Status
from kvshare_research.core.ports import Disclosure, Noise
from kvshare_research.core.rights import TENANT, Scope
from kvshare_research.privacy.bounds import area, epsilon_lower
from kvshare_research.privacy.desk import Desk
from kvshare_research.privacy.ledger import Budget, Ledger

from .disclosing import Discloser

if TYPE_CHECKING:
    from kvshare_research.config import Run

BEFORE, AFTER, FIRST_VOTER = 1, 2, 3  # the attacker's two tenants; voters belong to the others
VOCABULARY, TAIL_TOKENS = 250, 17  # every engine knows so many tokens
Asked = tuple[Request, NDArray[np.uint32]]
Floats = NDArray[np.float64]


class Stage(Protocol):
    """Where the attack takes place: a fleet with a desk in front of it."""

    label: str
    directory: Directory
    block_tokens: int
    node_count: int

    def open(self, desk: Desk) -> Discloser:
        """The desk stands in front of the router from now on."""

    def serve(self, asked: list[Asked]) -> list[Outcome]:
        """What came of these requests, each sent when the one before has ended."""

    def settle(self, discloser: Discloser) -> None:
        """All that was released is shared, or can not be."""

    def noise(self) -> Noise: ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What is attacked. `others` users ask for each prefix besides the one in question."""

    prefixes: int
    others: int
    prefix_blocks: int
    confidence: float

    def __post_init__(self) -> None:
        if self.prefixes < 20 or self.others < 0 or self.prefix_blocks < 1:
            raise ConfigError("`membership` needs 20 prefixes or more, no fewer than 0 others and 1 block or more")

    def play(self, stage: Stage, policy: Disclosure, delta: float, seed: int) -> int:
        """Prints both bounds; 1 if the attack's is above the accountant's, or the system failed a request."""
        rng = np.random.default_rng(seed)
        included = rng.random(self.prefixes) < 0.5
        size = self.prefix_blocks * stage.block_tokens
        texts = rng.integers(0, VOCABULARY, (self.prefixes, size)).astype(np.uint32)
        units = self.prefixes * (self.others + 1)
        budget = Budget(epsilon=1e6, delta=delta, unit=policy.unit, population=units)
        desk = Desk(policy, stage.noise(), Ledger(budget, None))
        discloser, number = stage.open(desk), iter(range(1, 1 << 30))

        def ask(prefix: int, tenant: int, user: int) -> Asked:
            tail = rng.integers(0, VOCABULARY, TAIL_TOKENS).astype(np.uint32)
            own = stage.directory.scope_id(Scope(TENANT, tenant))
            segments = tuple(Segment(scope_id=own, token_count=n) for n in (size, TAIL_TOKENS))
            request = Request(
                request_id=next(number), tenant_id=tenant, user_id=user, segments=segments, output_tokens_max=1,
                ingress=prefix % stage.node_count, arrival_us=0,
            )  # fmt: skip
            return request, np.concatenate([texts[prefix], tail])

        probes = rng.permutation(self.prefixes).tolist()
        before = stage.serve([ask(p, BEFORE, 0) for p in probes])
        tenants = len(stage.directory.tenants)
        votes = [
            ask(p, FIRST_VOTER + (u % (tenants - FIRST_VOTER + 1)), 1 + p * (self.others + 1) + u)
            for p in range(self.prefixes)
            for u in range(self.others + int(included[p]))
        ]
        rng.shuffle(votes)
        voted = stage.serve(votes)
        discloser.advance(policy.period_us)
        stage.settle(discloser)
        after = stage.serve([ask(p, AFTER, 0) for p in probes])
        failed = sum(o.status != Status.DONE for o in (*before, *voted, *after))
        notes = discloser.notes()
        print(
            f"{stage.label}: {self.prefixes} prefixes, {self.others} others each, {len(votes)} votes;"
            f" {notes['released_prefixes']} released, {notes['shared_prefixes']} shared, {failed} failed"
        )
        return int(self._judged(included[probes], before, after, desk) or failed > 0)

    def _judged(self, included: NDArray[np.bool_], before: list[Outcome], after: list[Outcome], desk: Desk) -> bool:
        assert desk.ledger is not None
        upper = desk.ledger.spent.epsilon if desk.policy.is_private else float("inf")
        print(f"accountant: at most {desk.spent()}")
        print(f"{'attack by':22} {'AUC before':>28} {'AUC after':>28} {'epsilon at least':>17}")
        beyond = False
        for name, signal in SIGNALS.items():
            cells, found = [], 0.0
            for outcomes in (before, after):
                scores = signal(outcomes)
                auc, low, high = area(scores[included], scores[~included])
                cells.append(f"{auc:9.3f} [{low:.3f}, {high:.3f}]")
                found = self.bound(scores, included, desk.ledger.budget.delta)
            print(f"{name:22} {cells[0]:>28} {cells[1]:>28} {found:17.2f}", flush=True)
            beyond |= found > upper
        print(
            f"the attack's bound holds with {self.confidence:.0%}: {'ABOVE the accountant' if beyond else 'below it'}"
        )
        return beyond

    def bound(self, scores: Floats, included: NDArray[np.bool_], delta: float) -> float:
        """The largest epsilon ruled out. The first half of the probes chooses the threshold, the second is counted."""
        half = len(scores) // 2
        best, chosen = -1.0, 0.0
        for threshold in np.unique(scores[:half]):
            above = scores[:half] >= threshold
            apart = abs(above[included[:half]].mean() - above[~included[:half]].mean())
            if apart > best:
                best, chosen = float(apart), float(threshold)
        above, inside = scores[half:] >= chosen, included[half:]
        return epsilon_lower(
            int((above & inside).sum()), int((above & ~inside).sum()), int(inside.sum()), delta, self.confidence,
            int((~inside).sum()),
        )  # fmt: skip


def _column(value: Callable[[Outcome], float]) -> Callable[[list[Outcome]], Floats]:
    return lambda outcomes: np.array([value(o) for o in outcomes], np.float64)


SIGNALS: Mapping[str, Callable[[list[Outcome]], Floats]] = {
    "time to first token": _column(lambda o: -float(o.ttft_us)),
    "reused tokens": _column(lambda o: float(o.prompt_tokens - o.computed_tokens)),
    "place": _column(lambda o: float(o.executor == o.ingress)),
}


@app("membership", module="kvshare_research.study.membership")
def main(cfg: Mapping[str, Any], comm: Any) -> int:
    """The attack in virtual time, or on the ranks of this job."""
    from kvshare_research.config import check

    from .membership_stages import on_ranks, simulated

    run: Run = check(cfg, cfg.keys())

    def play(stage: Stage) -> int:
        given: Membership = run.parts["membership"]
        return given.play(stage, run.parts["disclosure"], run.parts["budget"].delta, run.values.seed)

    return on_ranks(run, play) if run.parts["driver"].needs_ranks else simulated(run, play)


if __name__ == "__main__":
    sys.exit(main())
