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
from kvshare_research.core.nouns import NO_NODE, Outcome, Status
from kvshare_research.core.rights import GROUP, Scope
from kvshare_research.cost.calibration import fit_prefill
from kvshare_research.driver.cluster import Arrival, Cluster
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace

from .experiment import CASES, Case, Row, priced, told, verdict
from .prompts import TAIL_TOKENS, Writer, random_text
from .scores import Floats, power

if TYPE_CHECKING:
    from kvshare_research.config import Run

NAMES = {
    "one_group": "one_group",
    "isolated": "isolated",
    "layered": "layered",
    "layered, constant shape": "layered",
    "layered, secret in a group's text": "layered",
    "layered, secret in a group's text, padded": "layered",
    "layered, secret in a group's text, constant shape": "layered",
}  # of the cases played here, in order, and the configuration of each
WARM_PROMPTS = 8
REPEATS = 8  # of each shape of prompt that is timed before


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the attacker is told of each probe: [secret, candidate], candidate 0 the right one."""

    ttft_us: Floats
    elsewhere: Floats  # 1 where it was told of another node than the nearest
    reused_tokens: Floats
    late: Floats  # 1 where the answer came later than its shape: not told


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RankAttacks:
    """Each guard on the same ranks and engine, a row per signal; fields as in `conf/attack_ranks.yaml`."""

    secrets: int
    secrets_open: int
    secrets_group: int
    candidates: int
    template_blocks: int
    secret_blocks: int
    contention_trials: int
    out: str | None = None

    def play(self, run: Run, cluster: Cluster) -> int:
        """Prints a row per guard and signal; 1 if a guard does not withstand, or the attack is not real."""
        cluster.load(run.resolved)
        return told(self._rows(run, self._timed(run, cluster), cluster), "measured", self.out)

    def _timed(self, run: Run, cluster: Cluster) -> dict[str, Any]:
        """The configuration with the costs of this engine on this machine: shapes follow from quotes."""
        from kvshare_research.study.assembly import CALIBRATION

        config = dict(run.resolved)
        block = int(config["engine"]["block_tokens"])
        whole = (self.template_blocks + self.secret_blocks) * block + TAIL_TOKENS
        starts = (0, self.template_blocks * block, (self.template_blocks + self.secret_blocks // 2) * block)
        spans = [(0, end) for end in range(4 * block, whole, 8 * block)] + [(start, whole) for start in starts]
        cluster.reset(config)
        cluster.measure_prefill(0, spans, repeats=1, seed=1)
        times = cluster.measure_prefill(0, spans, repeats=REPEATS, seed=0)
        # the quickest of each: what other work on the machine adds, a node's pace follows
        fits = [(end - start, start, min(row)) for (start, end), row in zip(spans, times, strict=True)]
        return config | {CALIBRATION: {"cost": fit_prefill(fits)[0]._asdict()}}

    def _secrets(self, case: Case) -> int:
        if case.withstands is None:
            return self.secrets_group
        return self.secrets if case.withstands else self.secrets_open

    def _rows(self, run: Run, config: Mapping[str, Any], cluster: Cluster) -> Iterator[Row]:
        cases = {case.name: case for case in CASES}
        for name, tenancy in NAMES.items():
            case = cases[name]
            stage = _Stage(self, run, config, cluster, tenancy, case)
            what = stage.probe(self._secrets(case))
            signals = {"time": -what.ttft_us, "served by": what.elsewhere, "reused tokens": what.reused_tokens}
            for signal, scores in signals.items():
                found = power(scores, run.values.seed)
                # a node that already computed the secret is not always worth the way there
                right = verdict(case, found, signal != "served by")
                price = priced(what.ttft_us, what.late) if signal == "time" else ""
                yield Row(guard=name, signal=signal, power=found, verdict=right, price=price)
            if self.contention_trials and not case.shared_secret:
                yield Row(
                    guard=name, signal="contention", power=power(stage.contention(), run.values.seed),
                    verdict="reported",
                )  # fmt: skip


class _Stage:
    """One guard on the cluster, empty pools."""

    def __init__(
        self, asked: RankAttacks, run: Run, timed: Mapping[str, Any], cluster: Cluster, tenancy: str, case: Case
    ) -> None:
        from kvshare_research.study.assembly import parties
        from kvshare_research.study.settings import choice

        limits = {**timed["limits"], "shape": case.shape.kind.name.lower()}
        config = {**timed, "tenancy": choice("tenancy", tenancy), "limits": limits}
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

    def probe(self, secrets: int) -> Told:
        """All probes of so many secrets, one prompt at a time."""
        text, blocks = self._writer.text, self._asked.secret_blocks
        nodes = range(self._cluster.node_count)
        self._played([self._arrival(self._others, text(blocks), executor=i % len(nodes)) for i in range(WARM_PROMPTS)])
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
                seen.elsewhere[place] = outcome.shown_executor not in (NO_NODE, outcome.ingress)
                seen.reused_tokens[place] = outcome.shown_tokens
                seen.late[place] = outcome.shape_us > 0 and outcome.held_us == 0
        return seen

    def contention(self) -> Floats:
        """[trial, with or without the victim]: how long the attacker's prompt took on the node the victim may be on."""
        text, blocks = self._writer.text, self._asked.secret_blocks
        scores = np.zeros((self._asked.contention_trials, 2))
        for trial in range(len(scores)):
            for with_victim in self._writer.draw.permutation(2).tolist():
                rows = [self._arrival(self._victim, text(blocks), executor=0)] if with_victim else []
                rows.append(self._arrival(self._attacker, text(blocks), at_us=1_000, executor=0))
                outcomes = self._cluster.play(rows).outcomes
                assert all(o.status == Status.DONE for o in outcomes), "every prompt is answered"
                scores[trial, 1 - with_victim] = outcomes[-1].ttft_us
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
