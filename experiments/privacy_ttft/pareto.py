"""A row per disclosure policy, from isolation to sharing everything: what it spends against what it brings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvshare_research.core.nouns import Outcome
from kvshare_research.core.ports import Disclosure
from kvshare_research.disclosure.after_k import AfterK
from kvshare_research.disclosure.dp_batch import DpBatch
from kvshare_research.disclosure.never import NeverDisclosure
from kvshare_research.privacy.desk import Desk

ISOLATED, EVERYTHING = "never (isolated)", "everything shared"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)


def policies(period_us: int) -> dict[str, Disclosure]:
    """What is compared, by title; the last is played with prompts that are everybody's."""
    rows: dict[str, Disclosure] = {ISOLATED: NeverDisclosure()}
    for epsilon in EPSILONS:
        policy = DpBatch(epsilon=epsilon, delta=1e-6, l0=16, unit="tenant", period_us=period_us)
        rows[f"dp_batch, epsilon {epsilon:g}"] = policy
    for k in (10, 2):
        rows[f"after_k, k = {k} (no DP)"] = AfterK(k=k, unit="tenant", period_us=period_us)
    return rows | {EVERYTHING: NeverDisclosure()}


@dataclass(slots=True)
class Row:
    """What a policy did, over all seeds."""

    reused: list[float] = field(default_factory=list)  # share of prompt tokens, by seed
    across: list[float] = field(default_factory=list)  # first computed for another tenant
    names: list[int] = field(default_factory=list)
    by_tenant_ms: list[np.ndarray] = field(default_factory=list)  # total TTFT and requests of each tenant
    spent: float = 0.0
    rdp: float = 0.0

    def add(self, outcomes: Sequence[Outcome], desk: Desk, everything: bool) -> None:
        """One more seed."""
        tokens = sum(o.prompt_tokens for o in outcomes)
        self.reused.append(1 - sum(o.computed_tokens for o in outcomes) / tokens)
        self.across.append(sum(o.cross_tenant_tokens for o in outcomes) / tokens)
        self.names.append(len(desk.released))
        tenant = np.array([o.tenant_id for o in outcomes])
        totals = [np.bincount(tenant, weights) for weights in (np.array([o.ttft_us / 1000 for o in outcomes]), None)]
        self.by_tenant_ms.append(np.stack(totals)[:, totals[1] > 0])
        assert desk.ledger is not None
        free = everything or not (desk.policy.is_private or isinstance(desk.policy, NeverDisclosure))
        self.spent = math.inf if free else desk.ledger.spent.epsilon
        self.rdp = math.inf if free else desk.ledger.spent.rdp_epsilon

    def ttft_ms(self) -> tuple[float, float, float]:
        """The mean over requests, with 95 % by drawing tenants: what one tenant asks is not independent."""
        total, count = np.concatenate(self.by_tenant_ms, 1)
        drawn = np.random.default_rng(0).integers(len(total), size=(1_000, len(total)))
        low, high = np.quantile(total[drawn].sum(1) / count[drawn].sum(1), [0.025, 0.975])
        return float(total.sum() / count.sum()), float(low), float(high)


def show(rows: Mapping[str, Row]) -> None:
    """The table. The sharing rate is what of the reuse that sharing everything adds to isolation is had."""
    print("| policy | tokens reused | of other tenants | sharing rate | mean TTFT, ms [95 %] | names | spent (RDP) |")
    print("|---|---|---|---|---|---|---|")
    least, most = (float(np.mean(rows[t].reused)) for t in (ISOLATED, EVERYTHING))
    for title, row in rows.items():
        reused, (mean, low, high) = float(np.mean(row.reused)), row.ttft_ms()
        spent = "infinite" if math.isinf(row.spent) else f"{row.spent:.2f} ({row.rdp:.2f})"
        cells = [title, f"{reused:.3f}", f"{np.mean(row.across):.3f}", f"{(reused - least) / (most - least):.2f}"]
        cells += [f"{mean:.1f} [{low:.1f}, {high:.1f}]", f"{np.mean(row.names):.0f}", spent]
        print("| " + " | ".join(cells) + " |")


def plot(rows: Mapping[str, Row], title: str, path: Path) -> None:
    """TTFT against what was spent; what spends nothing lies at the left edge, what has no bound at the right one."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6))
    private = [(row.spent, *row.ttft_ms()) for row in rows.values() if 0 < row.spent < math.inf]
    spent, mean, low, high = (np.array(column) for column in zip(*sorted(private), strict=True))
    axes.errorbar(spent, mean, (mean - low, high - mean), fmt="o-", capsize=3, label="dp_batch")
    edges = {0.0: spent.min() / 2, math.inf: spent.max() * 2}
    for number, (name, row) in enumerate(rows.items()):
        if row.spent in edges:
            at, (mid, down, up) = edges[row.spent] * 1.06**number, row.ttft_ms()
            axes.errorbar(at, mid, ([mid - down], [up - mid]), fmt="s", capsize=3, label=name)
    axes.set(xscale="log", xlabel="epsilon spent in all, per tenant (PRV)", ylabel="mean TTFT, ms", title=title)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
