"""A simulated fleet for an experiment: a configuration of the main command, and prompts made here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.table import CONDITIONS
from kvshare_research.cli import conf_root
from kvshare_research.config import Run, check
from kvshare_research.core.nouns import Chain, Outcome, Request, Segment, Status
from kvshare_research.core.rights import EVERYBODY, TENANT, Scope
from kvshare_research.driver.simulator import Simulator
from kvshare_research.metrics.steady import steadiness
from kvshare_research.study.settings import choice
from kvshare_research.study.simulated import Fleet, build_fleet

WARMUP_RATIO = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request: its blocks by name, equal names (with equal ones before them) being equal text."""

    arrival_us: int
    blocks: Sequence[int]
    input_tokens: int
    output_tokens: int = 1
    tenant: int = 1
    public_blocks: int = 0  # so many first blocks belong to everybody, the rest to the tenant
    ingress: int | None = None  # None: any, drawn from the first own block
    session: int = 0
    user: int = 0


def setting(*overrides: str) -> Run:
    """The checked configuration that `python -m kvshare_research driver=simulator ...` would run."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    given = {word.partition("=")[0] for word in overrides}
    words = ["driver=simulator", "study=single", "tenants=one", "index=flat", "workload=generated"]
    words = [word for word in words if word.partition("=")[0] not in given] + list(overrides)
    with initialize_config_dir(str(conf_root()), version_base="1.3"):
        data = OmegaConf.to_container(compose("config", words), resolve=True)
    assert isinstance(data, dict)
    return check({str(key): value for key, value in data.items()}, [str(key) for key in data])


def play(
    run: Run, prompts: Iterable[Prompt], selector: str | Mapping[str, Any] | None = None, **changes: Any
) -> tuple[list[Outcome], Simulator]:
    """The prompts on empty nodes, under a selector of conf/ (or one spelt out); `changes` replace whole components."""
    config = dict(run.resolved) | changes
    if selector is not None:
        config["selector"] = choice("selector", selector) if isinstance(selector, str) else dict(selector)
    fleet = build_fleet(run, config)
    outcomes = sorted(fleet.ask(arrivals_of(fleet, prompts)), key=lambda o: o.request_id)
    name = str(config["selector"]["_target_"]).rsplit(".", 1)[-1]
    CONDITIONS.append((name, steadiness(outcomes, left_out=int(WARMUP_RATIO * len(outcomes)))))
    return outcomes, fleet.simulator


def arrivals_of(fleet: Fleet, prompts: Iterable[Prompt]) -> Iterator[tuple[Request, Chain]]:
    """The prompts as this fleet is asked them, one after the other."""
    nodes, block_tokens = len(fleet.simulator.workers), fleet.hasher.space.block_tokens
    directory = fleet.hasher.directory
    for index, prompt in enumerate(prompts):
        tokens = np.repeat(np.asarray(prompt.blocks, np.uint32), block_tokens)[: prompt.input_tokens]
        public = min(prompt.public_blocks * block_tokens, prompt.input_tokens)
        parts = ((EVERYBODY, public), (Scope(TENANT, prompt.tenant), prompt.input_tokens - public))
        segments = tuple(Segment(scope_id=directory.scope_id(s), token_count=n) for s, n in parts if n)
        own = prompt.blocks[min(prompt.public_blocks, len(prompt.blocks) - 1)]
        request = Request(
            request_id=index, tenant_id=prompt.tenant, user_id=prompt.user, session_id=prompt.session,
            segments=segments, output_tokens_max=prompt.output_tokens, arrival_us=prompt.arrival_us,
            ingress=own * 2_654_435_761 % 2**32 % nodes if prompt.ingress is None else prompt.ingress,
        )  # fmt: skip
        yield fleet.hasher.chained(request, tokens)[:2]


def counted(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The requests that were served, the first tenth left out as warm-up; `play` says of a run that needs more."""
    return [o for o in outcomes[int(WARMUP_RATIO * len(outcomes)) :] if o.status == Status.DONE]


def percentile_ms(outcomes: Sequence[Outcome], what: str, percent: float) -> float:
    """A percentile of `ttft_us` or another time, in ms."""
    return float(np.percentile([getattr(o, what) for o in outcomes], percent)) / 1e3


def reuse(outcomes: Sequence[Outcome]) -> float:
    """Reused tokens over prompt tokens."""
    return 1 - sum(o.computed_tokens for o in outcomes) / sum(o.prompt_tokens for o in outcomes)
