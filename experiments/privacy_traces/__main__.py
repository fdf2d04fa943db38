"""Sharing against epsilon on public traces: `python -m experiments.privacy_traces TRACE`.

TRACE is ragpulse or mooncake. Composed: the traces tell no tenants, so each session (for Mooncake each conversation,
inferred) belongs to one of so many tenants by its name. Nothing is declared public: the part that is the service's
(system prompt and passages; the first block) is each tenant's own, unless it is disclosed; the rest is the user's.
Simulated: the shipped hasher, desk, router and workers, three nodes with pools that hold everything, requests in the
order of the trace and one at a time. There are seven periods; what is voted for in one is shared from the next on.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
from msgspec import structs

from experiments.privacy_ttft.__main__ import NODES, fleet
from experiments.privacy_ttft.pareto import EVERYTHING, Row, plot, policies, show
from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import Outcome, Request, Segment
from kvshare_research.core.ports import Disclosure
from kvshare_research.core.rights import EVERYBODY, TENANT, USER, Scope
from kvshare_research.cost.ttft import TtftCost
from kvshare_research.disclosure.never import NeverDisclosure
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.namespace import ModelSpace
from kvshare_research.privacy.desk import Desk
from kvshare_research.privacy.ledger import Budget, Ledger
from kvshare_research.study.disclosing import Discloser
from kvshare_research.study.prompts import Hasher
from kvshare_research.workload.mooncake import MooncakeTrace
from kvshare_research.workload.ragpulse import RagPulseTrace
from kvshare_research.workload.trace import Reading, TraceRow
from kvshare_research.workload.trace_requests import TraceWorkload, content

PERIODS, GAP_US, SECOND = 7, 60_000_000, 1_000_000
BLOCK_TOKENS = {"ragpulse": 64, "mooncake": 512}
COST = TtftCost(  # Llama-3-70B on H100s, as conf/driver/simulator.yaml has it
    c0_ps=28_930_000_000, c1_ps_per_token=186_000_000, c2_ps_per_token=4_000_000, c3_ps_per_token2=2_550,
    c4_ps_per_token2=2_550, merge_ps_per_byte=0,
)  # fmt: skip
BYTES_PER_TOKEN = 327_680
KINDS: dict[str, type[RagPulseTrace] | type[MooncakeTrace]] = {"ragpulse": RagPulseTrace, "mooncake": MooncakeTrace}


def directory_of(tenants: int) -> Directory:
    """So many tenants with one user each."""
    own = [Scope(level, i + 1) for level in (TENANT, USER) for i in range(tenants)]
    users = tuple((f"u{i}", i + 1) for i in range(tenants))
    base = Directory(tenants=tuple(f"t{i}" for i in range(tenants)), groups=(), users=users, scopes=(EVERYBODY, *own))
    return Layered().directory(base)


def asked(
    trace: TraceWorkload, rows: list[TraceRow], directory: Directory, everybody: bool
) -> Iterator[tuple[Request, np.ndarray]]:
    """The requests of the trace, with tenants."""
    for index, row in enumerate(rows):
        tenant = 1 + crc32(trace.lineage(row).encode()) % len(directory.tenants)
        front = min(trace.public_tokens(row), row.input_tokens - 1)
        parts = [
            (EVERYBODY if everybody else Scope(TENANT, tenant), front),
            (Scope(USER, tenant), row.input_tokens - front),
        ]
        segments = tuple(Segment(scope_id=directory.scope_id(s), token_count=n) for s, n in parts if n)
        request = Request(
            request_id=index + 1, tenant_id=tenant, user_id=tenant, segments=segments, output_tokens_max=1,
            ingress=crc32(f"{tenant}".encode()) % NODES, arrival_us=0,
        )  # fmt: skip
        yield request, content(row, index, 0)


class Trace:
    """The requests of a trace among tenants. A policy that releases what another did is not played again."""

    def __init__(self, name: str, trace: TraceWorkload, rows: list[TraceRow], directory: Directory) -> None:
        self._size = BLOCK_TOKENS[name]
        self._trace, self._rows, self._directory = trace, rows, directory
        self._each = -(-len(rows) // PERIODS)
        self._hasher = Hasher(
            tenancy=Layered(), directory=directory, ring=KeyRing(RootSecret.from_seed(0)), discloses=True,
            space=ModelSpace(model="m", dtype="bf16", block_tokens=self._size),
        )  # fmt: skip
        asking = asked(trace, rows, directory, False)
        self._votes = [(self._hasher.chained(request, tokens)[2], request) for request, tokens in asking]
        self._played: dict[tuple[object, ...], list[Outcome]] = {}

    def _desk(self, policy: Disclosure) -> Desk:
        budget = Budget(epsilon=1e6, delta=1e-5, unit="tenant", population=len(self._directory.tenants))
        return Desk(policy, SeededNoise(1), Ledger(budget, None), keep_releases=30)

    def outcomes(self, policy: Disclosure, everybody: bool) -> tuple[list[Outcome], Desk]:
        """Of all periods after the first; and the desk as it is at the end."""
        desk, releases = self._desk(policy), []
        for index, (offer, request) in enumerate(self._votes):
            if index and index % self._each == 0:
                desk.advance(index // self._each * SECOND)
                releases.append(desk.released)
            desk.vote(offer, request)
        key = (everybody, *releases)
        if key not in self._played:
            self._played[key] = self._play(policy, everybody)
        return self._played[key], desk

    def _play(self, policy: Disclosure, everybody: bool) -> list[Outcome]:
        sim = fleet(self._directory, cost=COST, block_tokens=self._size, block_bytes=self._size * BYTES_PER_TOKEN)
        hasher = replace(self._hasher, discloses=not isinstance(policy, NeverDisclosure))
        discloser = Discloser(hasher, self._desk(policy), lambda event: sim.at(sim.now_us, event), lambda: sim.router)
        for index, (request, tokens) in enumerate(asked(self._trace, self._rows, self._directory, everybody)):
            if index and index % self._each == 0:
                discloser.advance(index // self._each * SECOND)
                sim.run()
            made, chain = discloser.arrive(request, tokens, 0)
            sim.inject(structs.replace(made, arrival_us=sim.now_us + GAP_US), chain)
            sim.run()
        return [o for o in sim.outcomes if o.request_id > self._each]


def main(given: argparse.Namespace) -> int:
    """A row per policy."""
    name, kind = given.trace, KINDS[given.trace]
    trace = kind(data_root=os.environ.get("KVSHARE_DATA"))
    rows = list(trace.rows(Reading()))[: given.requests]
    played = Trace(name, trace, rows, directory_of(given.tenants))
    found: dict[str, Row] = {}
    for title, policy in policies(SECOND).items():
        everything = title == EVERYTHING
        outcomes, desk = played.outcomes(policy, everything)
        found.setdefault(title, Row()).add(outcomes, desk, everything)
        print(".", end="", file=sys.stderr, flush=True)
    print(
        f"\ncomposed: {name}, {len(rows)} requests of {given.tenants} tenants, {NODES} nodes, {PERIODS} periods less"
        " the first; spent is what all releases compose to at delta 1e-5"
    )
    show(found)
    if given.figure:
        plot(found, f"{name}, {given.tenants} tenants [composed]", given.figure)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m experiments.privacy_traces")
    parser.add_argument("trace", choices=KINDS)
    parser.add_argument("--tenants", type=int, default=1_000)
    parser.add_argument("--requests", type=int, help="the first so many; all of them without")
    parser.add_argument("--figure", type=Path, help="draw it, as a picture of this name")
    sys.exit(main(parser.parse_args()))
