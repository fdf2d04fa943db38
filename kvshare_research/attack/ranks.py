"""`python -m kvshare_research.attack.ranks`: the same hostile tenant on real MPI ranks, with times that were measured.

One prompt is in the fleet at a time, so that a time to first token tells of reuse and not of a queue; what queues give
away is its own signal, `contention`: was the victim being served while the attacker's probe ran?
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from kvshare_research.cli import app
from kvshare_research.core.nouns import Outcome, Status
from kvshare_research.core.rights import GROUP, Scope
from kvshare_research.driver.cluster import Arrival, Cluster
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace

from .experiment import CASES, Case, Row, told, verdict
from .prompts import Writer, random_text
from .scores import Floats, power

if TYPE_CHECKING:
    from kvshare_research.config import Run

NAMES = {
    "one_group": "one_group",
    "isolated": "isolated",
    "layered": "layered",
    "layered, constant shape": "layered",
    "layered, secret in a group's text": "layered",
    "layered, secret in a group's text, constant shape": "layered",
}  # of the cases played here, in order, and the configuration of each
FRESH_PROMPTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the attacker is told of each probe: [secret, candidate], candidate 0 the right one."""

    ttft_us: Floats
    elsewhere: Floats  # 1 where another node than the nearest served it
    reused_tokens: Floats

    def shaped(self, shape_us: float) -> Told:
        """Answers of one shape: held back to `shape_us`, and without a word of node or reuse."""
        nothing = np.zeros_like(self.ttft_us)
        return Told(ttft_us=np.maximum(self.ttft_us, shape_us), elsewhere=nothing, reused_tokens=nothing)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RankAttacks:
    """Each guard on the same ranks and engine, a row per signal; fields as in `conf/attack_ranks.yaml`."""

    secrets: int
    secrets_open: int
    candidates: int
    template_blocks: int
    secret_blocks: int
    contention_trials: int
    shape_margin: float
    out: str | None = None

    def play(self, run: Run, cluster: Cluster) -> int:
        """Prints a row per guard and signal; 1 if a guard does not withstand, or the attack is not real."""
        cluster.load(run.resolved)
        return told(self._rows(run, cluster), "measured", self.out)

    def _rows(self, run: Run, cluster: Cluster) -> Iterator[Row]:
        seen: dict[tuple[str, bool], tuple[Told, float]] = {}
        cases = {case.name: case for case in CASES}
        for name, tenancy in NAMES.items():
            case = cases[name]
            stage = _Stage(self, run, cluster, tenancy, case)
            key = (tenancy, case.shared_secret)
            if key not in seen:  # answers of one shape are those of the same probes, held back
                seen[key] = stage.probe(self.secrets if case.withstands else self.secrets_open)
            what, shape_us = seen[key]
            what = what.shaped(shape_us) if case.constant_shape else what
            signals = {"time": -what.ttft_us, "served by": what.elsewhere, "reused tokens": what.reused_tokens}
            for signal, scores in signals.items():
                found = power(scores, run.values.seed)
                # a node that already computed the secret is not always worth the way there
                yield Row(guard=name, signal=signal, power=found, verdict=verdict(case, found, signal != "served by"))
            if self.contention_trials and not case.shared_secret:
                found = power(stage.contention(shape_us if case.constant_shape else 0.0), run.values.seed)
                yield Row(guard=name, signal="contention", power=found, verdict="reported")


class _Stage:
    """One guard on the cluster, empty pools."""

    def __init__(self, asked: RankAttacks, run: Run, cluster: Cluster, tenancy: str, case: Case) -> None:
        from kvshare_research.study.assembly import parties
        from kvshare_research.study.settings import choice

        config = {**run.resolved, "tenancy": choice("tenancy", tenancy)}
        cluster.reset(config)
        self._asked, self._cluster = asked, cluster
        self._number = 0
        seed = run.values.seed
        tokenizer = run.parts["engine"].open_tokenizer()
        block_tokens = int(config["engine"]["block_tokens"])
        capacity = min(row.capacity_blocks for row in cluster.engines)
        directory, _ = parties(config, capacity_blocks=capacity, block_bytes=cluster.engines[0].block_bytes)
        self._victim, self._attacker, self._others = (directory.tenant_id(n) for n in ("victim", "attacker", "others"))
        space = ModelSpace(
            model=cluster.engines[0].fingerprint, dtype=str(config["engine"]["dtype"]), block_tokens=block_tokens,
            template=tokenizer.version,
        )  # fmt: skip
        draw = np.random.default_rng(seed)
        vocabulary = tokenizer.vocabulary_count
        self._writer = Writer(
            tenancy=case.tenancy, directory=directory, draw=draw, vocabulary=vocabulary, space=space,
            ring=KeyRing(RootSecret.resolve(path=run.values.secret_file, seed=seed)),
            template=random_text(draw, vocabulary, asked.template_blocks * block_tokens),
            shared=Scope(GROUP, directory.group_id("guild")) if case.shared_secret else None,
        )  # fmt: skip

    def _arrival(self, tenant: int, secret: Any, at_us: int = 0, executor: int | None = None) -> Arrival:
        self._number += 1
        request, made, tokens = self._writer.prompt(
            tenant, secret, number=self._number, at_us=at_us, node_count=self._cluster.node_count, executor=executor
        )
        return at_us, request, made, tokens

    def probe(self, secrets: int) -> tuple[Told, float]:
        """All probes of so many secrets, one prompt at a time; and the time to which constant shape holds answers."""
        text, blocks = self._writer.text, self._asked.secret_blocks
        nodes = range(self._cluster.node_count)
        fresh = [self._arrival(self._others, text(blocks), executor=i % len(nodes)) for i in range(FRESH_PROMPTS)]
        slowest_us = max(o.ttft_us for o in self._played(fresh)[len(nodes) :])  # the first of each node warm it up
        rows: list[Arrival] = []
        at: dict[int, tuple[int, int]] = {}
        for secret in range(secrets):
            guesses = [text(blocks) for _ in range(self._asked.candidates)]
            rows.append(self._arrival(self._victim, guesses[0]))
            for candidate in self._writer.draw.permutation(len(guesses)).tolist():
                rows.append(self._arrival(self._attacker, guesses[candidate]))
                at[self._number] = (secret, candidate)
        seen = Told(**{f: np.zeros((secrets, self._asked.candidates)) for f in Told.__dataclass_fields__})
        for outcome in self._played(rows):
            if outcome.request_id in at:
                place = at[outcome.request_id]
                seen.ttft_us[place] = outcome.ttft_us
                seen.elsewhere[place] = outcome.executor != outcome.ingress
                seen.reused_tokens[place] = outcome.prompt_tokens - outcome.computed_tokens
        return seen, slowest_us * self._asked.shape_margin

    def contention(self, shape_us: float) -> Floats:
        """[trial, with or without the victim]: how long the attacker's prompt took on the node the victim may be on."""
        text, blocks = self._writer.text, self._asked.secret_blocks
        scores = np.zeros((self._asked.contention_trials, 2))
        for trial in range(len(scores)):
            for with_victim in self._writer.draw.permutation(2).tolist():
                rows = [self._arrival(self._victim, text(blocks), executor=0)] if with_victim else []
                rows.append(self._arrival(self._attacker, text(blocks), at_us=1_000, executor=0))
                outcomes = self._cluster.play(rows).outcomes
                assert all(o.status == Status.DONE for o in outcomes), "every prompt is answered"
                last = outcomes[-1]
                scores[trial, 1 - with_victim] = max(float(last.ttft_us), shape_us)
        return scores

    def _played(self, rows: list[Arrival]) -> tuple[Outcome, ...]:
        outcomes = self._cluster.play_idle(rows).outcomes
        assert all(o.status == Status.DONE for o in outcomes), "every probe is answered"
        return outcomes


@app("attack_ranks", module="kvshare_research.attack.ranks")
def main(cfg: Mapping[str, Any], comm: Any) -> int:
    """One row per guard and signal; 1 if a row is not as it must be."""
    from kvshare_research.config import check
    from kvshare_research.driver.mpi import launch
    from kvshare_research.study.assembly import StudyAssembly

    run = check(cfg, cfg.keys())
    attack: RankAttacks = run.parts["attack"]
    return launch(lambda cluster: attack.play(run, cluster), StudyAssembly())


if __name__ == "__main__":
    sys.exit(main())
