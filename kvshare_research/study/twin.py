"""The simulated twin of a case that ranks have played: the same requests at the same times, on the same machines in
virtual time, with engines and links as calibration measured them before. It says how far the simulator can be believed.

The twin sees nothing of what the case gave. How fast the ranks serve was measured before the first case (`pace`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from msgspec.structs import replace

from kvshare_research.core.costing import PrefillCoefficients
from kvshare_research.core.nouns import LinkRow, Outcome
from kvshare_research.cost.calibration import link_model_of
from kvshare_research.cost.links import LinkModel
from kvshare_research.driver.assembly import Place
from kvshare_research.driver.cluster import TICK_US
from kvshare_research.driver.simulator import Simulator
from kvshare_research.driver.simulator_engine import EngineModel

from .assembly import CALIBRATION, StudyAssembly, priced
from .pace import ServingPace
from .prompts import Prompt

Sample = Sequence[int]  # source, reader, bytes, us


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What the ranks are: how many workers, with which pools, and how fast they were when they served."""

    node_count: int
    capacity_blocks: int
    block_bytes: int
    pace: ServingPace


def twin(
    config: Mapping[str, Any], given: Sequence[Prompt], times_us: Sequence[int] | None, machines: Machines, seed: int
) -> tuple[Outcome, ...]:
    """What becomes of the prompts in virtual time, in their order; without times one after the other."""
    simulator = _simulator(config, machines, seed)
    for i, prompt in enumerate(given):
        at_us = simulator.now_us if times_us is None else times_us[i]
        simulator.inject(replace(prompt.request, arrival_us=at_us), prompt.chain)
        if times_us is None:
            simulator.run()
    simulator.run()
    warm = {prompt.request.request_id: prompt.warmup for prompt in given}
    rows = sorted(simulator.outcomes, key=lambda outcome: outcome.request_id)
    return tuple(replace(row, warmup=warm[row.request_id], output_tokens=()) for row in rows)


def _simulator(config: Mapping[str, Any], machines: Machines, seed: int) -> Simulator:
    assembly, nodes = StudyAssembly(), machines.node_count
    plain = dict(config)

    def place(node: int | None) -> Place:
        return Place(
            node=node, node_count=nodes, capacity_blocks=machines.capacity_blocks, block_bytes=machines.block_bytes,
            incarnation=1,
        )  # fmt: skip

    cost, pace = priced(plain), machines.pace
    return Simulator(
        router=assembly.router(plain, place(None)),
        workers=[assembly.worker(plain, place(node)) for node in range(nodes)],
        links=measured_links(plain[CALIBRATION]["link_samples"], nodes),
        engine=EngineModel(
            prefill=PrefillCoefficients(*(ps * pace.prefill_permille // 1_000 for ps in cost.coefficients)),
            decode_step_ps=cost.decode_step_ps * pace.decode_permille // 1_000,
            decode_ps_per_token=cost.decode_ps_per_token * pace.decode_permille // 1_000,
            merge_ps_per_byte=cost.merge_ps_per_byte,
            together_permille=pace.together_permille,
        ),
        block_bytes=machines.block_bytes,
        control_us=pace.control_us,
        tick_us=TICK_US,
        seed=seed,
    )


def measured_links(samples: Sequence[Sample], node_count: int) -> list[list[LinkRow]]:
    """Every directed link at its median round trip and rate; one that was not measured is as it is assumed to be."""

    def row(source: int, reader: int) -> LinkRow:
        own = [(size, us) for s, r, size, us in samples if (s, r) == (source, reader)]
        model = link_model_of(own, LinkModel())
        return LinkRow(
            rtt_us=model.rtt_us, rtt_high_us=model.rtt_us, ps_per_byte=model.ps_per_byte,
            ps_per_byte_high=model.ps_per_byte,
        )  # fmt: skip

    return [[row(source, reader) for reader in range(node_count)] for source in range(node_count)]
