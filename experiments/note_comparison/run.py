"""The note's table of systems: what each cell claims, and what the rule of that system does when it runs here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from experiments.fleet import Prompt, play, setting
from experiments.table import show
from kvshare_research.config import Run
from kvshare_research.core.nouns import Action, Chain, LinkRow, Outcome, Segment
from kvshare_research.core.ports import QuoteInput, Selector
from kvshare_research.core.rights import EVERYBODY
from kvshare_research.guard.detail import Detail
from kvshare_research.guard.namespace import chain
from kvshare_research.index.radix import RadixStore
from kvshare_research.study.assembly import component, priced
from kvshare_research.study.settings import choice
from kvshare_research.study.simulated import build_fleet
from kvshare_research.testing.tables import random_input

BLOCK, BLOCKS, POOL_BLOCKS = 512, 16, 64
SITUATIONS, SMALL = 300, 100
SYSTEMS = {"vLLM": "round_robin", "Mooncake": "mooncake", "GORGO": "gorgo", "SGLang": "sglang_cache_aware"}
OURS = "as the note describes it"  # of no paper: it is what this project builds
SELECTORS = {**SYSTEMS, OURS: "cheapest"}
FLOOR_BYTES = 20 * BLOCK * 327_680  # of each tenant, where there are floors
QUOTA = {"reserved_bytes": FLOOR_BYTES, "limit_bytes": None, "priority": "standard"}
PARTIES = {
    "priorities": {"standard": 0}, "public": {}, "groups": [],
    "tenants": [{"name": name, "users": 1, "account": QUOTA} for name in ("one", "two")],
    "applications": [{"name": "text", "system": "public", "few_shot": "public", "user": "tenant"}],
}  # fmt: skip


@cache
def fleet(nodes: int) -> Run:
    """All ways of serving, fast links between the nodes."""
    return setting(
        f"driver.node_count={nodes}", f"driver.block_tokens={BLOCK}", f"driver.pool_tokens={POOL_BLOCKS * BLOCK}",
        "link=rdma_400g", "driver.warmup_ratio=0",
    )  # fmt: skip


def asked(
    number: int, first: int, *, tenant: int = 1, public: bool = False, at_s: float | None = None, ingress: int = 0
) -> Prompt:
    """One prompt of sixteen blocks of text that begins at `first`, long after the one before unless said otherwise."""
    return Prompt(
        arrival_us=int(1e6 * (20 * number if at_s is None else at_s)), blocks=range(first, first + BLOCKS),
        input_tokens=BLOCKS * BLOCK, tenant=tenant, user=tenant, public_blocks=BLOCKS if public else 0,
        ingress=ingress,
    )  # fmt: skip


def played(system: str, nodes: int, prompts: list[Prompt], tenancy: str | None = None) -> list[Outcome]:
    """Published systems share all they hold unless told otherwise; ours follows scopes and floors."""
    tenancy = tenancy or ("layered" if system == OURS else "one_group")
    return play(fleet(nodes), prompts, SELECTORS[system], tenancy=choice("tenancy", tenancy), tenants=PARTIES)[0]


def reused(outcome: Outcome) -> float:
    """Of what could be: the last block holds the last token, which is always computed."""
    return (outcome.prompt_tokens - outcome.computed_tokens) / ((BLOCKS - 1) * BLOCK)


def stranger(system: str, *, public: bool = False, tenancy: str | None = None) -> float:
    """What one tenant reuses, on one node, of the prompt that another has just asked."""
    prompts = [asked(0, 1, public=public), asked(1, 1, tenant=2, public=public)]
    return reused(played(system, 1, prompts, tenancy)[1])


def flooded(system: str) -> float:
    """What a tenant still reuses of its own prompt after the other has asked for three times the pool."""
    flood = [asked(1 + i, 1_000 * (1 + i), tenant=2) for i in range(3 * POOL_BLOCKS // BLOCKS)]
    return reused(played(system, 1, [asked(0, 1), *flood, asked(99, 1)])[-1])


def pulling(system: str) -> float:
    """Share of requests whose bytes come from another node: one has the prompt, twenty ask for it at once."""
    prompts = [asked(0, 1, public=True)] + [asked(i, 1, public=True, at_s=30, ingress=i % 4) for i in range(1, 21)]
    return float(np.mean([o.pulled_tokens > 0 for o in played(system, 4, prompts)[1:]]))


def flipped(given: QuoteInput, what: str) -> QuoteInput:
    """Every link has the round trips, or the bandwidth, of the way back."""

    def link(source: int, reader: int) -> LinkRow:
        here, back = given.links[source][reader], given.links[reader][source]
        if what == "round trips":
            return replace(here, rtt_us=back.rtt_us, rtt_high_us=back.rtt_high_us)
        return replace(here, ps_per_byte=back.ps_per_byte, ps_per_byte_high=back.ps_per_byte_high)

    nodes = range(len(given.links))
    return replace(given, links=tuple(tuple(link(s, r) for r in nodes) for s in nodes))


@cache
def situations(count: int) -> list[QuoteInput]:
    """Drawn: depths, loads, links; every way of serving is allowed."""
    made = (random_input(seed) for seed in range(count))
    free = (replace(g, request=replace(g.request, executor=None), actions=frozenset(Action)) for g in made)
    return [given for given in free if any(load.alive for load in given.loads)]


def moved_by(system: str, what: str, count: int) -> float:
    """Share of decisions that turn out otherwise when nothing but the links has changed."""
    config = fleet(2).resolved
    cost = priced(config)
    selector: Selector = component({"selector": choice("selector", SELECTORS[system])}, "selector")

    def decided(given: QuoteInput) -> tuple[int, int, int]:
        table = cost.quote(given)
        row = selector.select(table)
        return int(table.executor[row]), int(table.action[row]), int(table.source[row])

    return float(np.mean([decided(given) != decided(flipped(given, what)) for given in situations(count)]))


def tokens_found(index: str, same: int) -> int:
    """Tokens known of a prompt that begins with `same` tokens of one that is held, in blocks of 16."""
    config = dict(fleet(1).resolved) | {"index": choice("index", index)}
    hasher = build_fleet(setting("driver.node_count=1", "driver.block_tokens=16"), config).hasher
    store, detail = component(config, "index").new_store(1), Detail(reads=component(config, "index").reads)
    scope = hasher.directory.scope_id(EVERYBODY)

    def hashed(tokens: list[int]) -> Chain:
        parts = (Segment(scope_id=scope, token_count=len(tokens)),)
        return chain(
            np.array(tokens, np.uint32), parts, (scope,), directory=hasher.directory, ring=hasher.ring,
            space=hasher.space, detail=detail,
        )  # fmt: skip

    held, wanted = hashed(list(range(1, 65))), hashed([*range(1, 1 + same), *range(1_000, 1_064 - same)])
    store.store(0, 0, None, held.block_hashes(0, held.block_count))
    store.seen(held)
    if isinstance(store, RadixStore):
        return store.estimate(wanted).get((0, 0), 0)
    return max((run.block_count * wanted.block_tokens for run in store.match(wanted).runs), default=0)


def run(situations_max: int | None = None) -> dict[str, float]:
    """Everything that a cell is judged by."""
    count = min(SITUATIONS, situations_max or SITUATIONS)
    found: dict[str, float] = {}
    for system in SELECTORS:
        found[f"{system}: reuse of a stranger's text"] = stranger(system)
        found[f"{system}: reuse of one's own after a flood"] = flooded(system)
        found[f"{system}: requests that pull from another node"] = pulling(system)
        for what in ("round trips", "bandwidth"):
            found[f"{system}: decisions that other {what} change"] = moved_by(system, what, count)
    for system in ("vLLM", "SGLang"):
        found[f"{system}: reuse of a stranger's text, a salt per tenant"] = stranger(system, tenancy="isolated")
    found[f"{OURS}: reuse of a public text"] = stranger(OURS, public=True)
    found["block hashes (vLLM): tokens found of 40 that two prompts share"] = tokens_found("flat", 40)
    found["tree of tokens (SGLang): tokens found of 40 that two prompts share"] = tokens_found("radix", 40)
    return found


# ------------------------------------------------------------------ the note's table
@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of the note: what is seen of it, whether that makes it true, and where its truth can be read."""

    system: str
    column: str
    claim: str
    seen: Callable[[Mapping[str, float]], str]
    holds: Callable[[Mapping[str, float]], str]
    source: str


def _either(truth: bool) -> str:
    return "holds" if truth else "does not hold"


def _scope(system: str, claim: str, source: str) -> Cell:
    name = f"{system}: reuse of a stranger's text"
    return Cell(
        system=system, column="shares", claim=claim, source=source,
        seen=lambda f: f"{f[name]:.0%} of a stranger's prompt on one node",
        holds=lambda f: _either(f[name] == 0),
    )  # fmt: skip


def _network(system: str, claim: bool, source: str) -> Cell:
    names = [f"{system}: decisions that other {what} change" for what in ("round trips", "bandwidth")]

    def holds(f: Mapping[str, float]) -> str:
        seen = [f[name] > 0 for name in names]
        return "half" if claim and seen[0] != seen[1] else _either(any(seen) == claim)

    return Cell(
        system=system, column="network-aware", claim="yes" if claim else "no", holds=holds, source=source,
        seen=lambda f: "other round trips change {:.0%} of decisions, bandwidth {:.0%}".format(*(f[n] for n in names)),
    )  # fmt: skip


def _isolation(system: str, claim: str, source: str) -> Cell:
    names = [f"{system}: reuse of a stranger's text", f"{system}: reuse of one's own after a flood"]
    salted = f"{names[0]}, a salt per tenant"

    def holds(f: Mapping[str, float]) -> str:
        isolated = f[names[0]] == 0 and f[names[1]] > 0
        if claim == "no" and f.get(salted) == 0:
            return "as it comes; not with a salt"
        return _either(isolated == (claim != "no"))

    def seen(f: Mapping[str, float]) -> str:
        told = "a stranger reuses {:.0%}, after a flood {:.0%} of one's own is left".format(*(f[n] for n in names))
        return told + (f"; salted, a stranger reuses {f[salted]:.0%}" if salted in f else "")

    return Cell(system=system, column="isolation", claim=claim, seen=seen, holds=holds, source=source)


def _index(system: str, claim: str, tree: bool, source: str) -> Cell:
    kind = "tree of tokens" if system == "SGLang" else "block hashes"
    name = f"{kind} ({system}): tokens found of 40 that two prompts share"
    return Cell(
        system=system, column="index", claim=claim, source=source,
        seen=lambda f: f"its kind of index finds {f[name]:.0f} of 40 tokens",
        holds=lambda f: _either((f[name] == 40) == tree),
    )  # fmt: skip


def _said(system: str, column: str, claim: str, seen: str, verdict: str, source: str) -> Cell:
    return Cell(
        system=system, column=column, claim=claim, source=source, seen=lambda f: seen, holds=lambda f: verdict
    )  # fmt: skip


def _moves(system: str, claim: str, source: str) -> Cell:
    name = f"{system}: requests that pull from another node"
    return Cell(
        system=system, column="shares", claim=claim, source=source,
        seen=lambda f: f"{f[name]:.0%} of requests pull from another node",
        holds=lambda f: _either(f[name] > 0),
    )  # fmt: skip


VLLM, SGLANG = "vLLM (pull request 17045)", "SGLang (arXiv 2312.07104)"
MOONCAKE, GORGO, ONEIROS = "arXiv 2407.00079", "arXiv 2602.11688, 2503.16525", "arXiv 2507.11507"
NOT_RUN = "not run: it shares nothing between users"
CELLS = (
    _scope("vLLM", "within a request or a user", VLLM),
    _network("vLLM", False, VLLM),
    _isolation("vLLM", "no", VLLM),
    _index("vLLM", "radix tree", True, f"{VLLM}: a chain of block hashes"),
    _moves("Mooncake", "a distributed pool", MOONCAKE),
    _network("Mooncake", True, MOONCAKE),
    _isolation("Mooncake", "no", f"{MOONCAKE}; its store has had tenant quotas since (issue 2153)"),
    _said("Mooncake", "index", "a global scheduler", "no index itself; it has block hashes", "no index", MOONCAKE),
    _moves("GORGO", "across users and nodes", f"{GORGO}: one moves requests, the other has one node"),
    _network("GORGO", True, f"{GORGO}, which has one node"),
    _isolation("GORGO", "quotas and isolation", f"{GORGO}: neither has any"),
    _said("GORGO", "index", "global hashes and a trie", "one has a trie, the other hashes", "half", GORGO),
    _said("Oneiros", "shares", "parameters across users", NOT_RUN, "does not hold, by its paper",
          f"{ONEIROS}: memory of parameters becomes memory for KV"),
    _said("Oneiros", "network-aware", "no", NOT_RUN, "holds, by its paper", ONEIROS),
    _said("Oneiros", "isolation", "yes", NOT_RUN, "not told", ONEIROS),
    _said("Oneiros", "index", "a table of parameters", NOT_RUN, "no index", ONEIROS),
    _scope("SGLang", "within a request", SGLANG),
    _network("SGLang", False, SGLANG),
    _isolation("SGLang", "no", f"{SGLANG}; its salt is `extra_key`"),
    _index("SGLang", "hashes", False, f"{SGLANG}: a radix tree of tokens or pages"),
    _moves(OURS, "across users and nodes", "`cheapest`"),
    _network(OURS, True, "`cheapest`"),
    _isolation(OURS, "quotas and isolation", "`layered`, floors"),
    _said(OURS, "index", "global hashes and a trie", "`index=flat` and `index=radix`", "holds", "`conf/index`"),
)  # fmt: skip


def rows(found: Mapping[str, float]) -> list[str]:
    """The table, a line per cell."""
    head = ["| system | cell | the note | observed | verdict | source |", "|---|---|---|---|---|---|"]
    return head + [
        f"| {c.system} | {c.column} | {c.claim} | {c.seen(found)} | {c.holds(found)} | {c.source} |" for c in CELLS
    ]


def main() -> int:
    """Both tables; 0 if every quantity is inside its band."""
    found: dict[str, Any] = run()
    print("\n".join(rows(found)) + "\n")
    return show(Path(__file__).parent, found)


if __name__ == "__main__":
    raise SystemExit(main())
