"""vLLM's caching as a baseline: who hits what whom computed, under each preset, as pairs that must and must not."""

from __future__ import annotations

import random
import re
from functools import cache

import pytest

from experiments.fleet import Prompt, play, setting
from kvshare_research.cli import conf_root
from kvshare_research.config import Run
from kvshare_research.core.nouns import Action

ONE, SAME_USER, SAME_TENANT, STRANGER = (1, 1), (1, 1), (1, 2), (2, 3)  # (tenant, user) of conf/tenants/demo.yaml
SHARED = {
    "vllm_shared": {SAME_USER, SAME_TENANT, STRANGER},
    "vllm_salted": {SAME_USER, SAME_TENANT},
    "vllm_per_user": {SAME_USER},
}
BLOCK_TOKENS, BLOCKS = 16, 64


@cache
def configured(*choices: str) -> Run:
    return setting(*choices, "tenants=demo", "driver.node_count=2", f"driver.block_tokens={BLOCK_TOKENS}")


@pytest.mark.parametrize("preset", SHARED)
@pytest.mark.parametrize("second", [SAME_USER, SAME_TENANT, STRANGER], ids=["same user", "same tenant", "stranger"])
@pytest.mark.parametrize("public_blocks", [0, BLOCKS], ids=["own text", "public text"])
def test_the_same_salt_hits_and_another_misses(preset: str, second: tuple[int, int], public_blocks: int) -> None:
    """The same prompt twice on one node: all but the last block is reused, or nothing is. A salt does not tell a
    public prompt from one's own. On the other node, whoever asks, nothing is: each has a cache of its own."""
    prompts = [
        Prompt(
            arrival_us=i * 20_000_000, blocks=range(1, BLOCKS + 1), input_tokens=BLOCKS * BLOCK_TOKENS, tenant=tenant,
            user=user, public_blocks=public_blocks, ingress=0,
        )
        for i, (tenant, user) in enumerate((ONE, second, second))
    ]  # fmt: skip
    (first, elsewhere, here), simulator = play(configured(f"experiment={preset}"), prompts)
    assert [o.executor for o in (first, elsewhere, here)] == [0, 1, 0]
    assert first.computed_tokens == elsewhere.computed_tokens == first.prompt_tokens
    reused = here.prompt_tokens - here.computed_tokens
    assert reused == ((BLOCKS - 1) * BLOCK_TOKENS if second in SHARED[preset] else 0)
    assert (here.cross_tenant_tokens > 0) == (second == STRANGER and preset == "vllm_shared")
    assert simulator.moved_bytes == 0
    assert Action.PULL not in simulator.router.policy.actions


@pytest.mark.parametrize("preset", SHARED)
def test_in_a_sweep_it_is_a_selector_and_a_tenancy(preset: str) -> None:
    """As the preset's file says: the same decisions and times, though such a run may also pull."""
    said = (conf_root() / "experiment" / f"{preset}.yaml").read_text()
    (tenancy,) = re.findall(r"selector=round_robin,cheapest tenancy=(\w+)`", said)
    chance = random.Random(preset)
    prompts = [
        Prompt(
            arrival_us=i * 50_000, blocks=range(first := 100 * chance.randint(1, 3), first + BLOCKS),
            input_tokens=BLOCKS * BLOCK_TOKENS, tenant=tenant, user=user, ingress=chance.randint(0, 1),
        )
        for i in range(60)
        for tenant, user in [chance.choice((ONE, SAME_TENANT, STRANGER))]
    ]  # fmt: skip
    alone, _ = play(configured(f"experiment={preset}"), prompts)
    beside, simulator = play(configured("selector=round_robin", f"tenancy={tenancy}"), prompts)
    assert alone == beside
    assert any(outcome.computed_tokens < outcome.prompt_tokens for outcome in beside)
    assert Action.PULL in simulator.router.policy.actions
