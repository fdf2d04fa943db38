"""Chats like those of ART-Chat-2.5M, made from its published statistics; the trace itself is not public here.

Published of the windows of GORGO v3 (arXiv 2602.11688): about 580 users, median input 5,700 tokens, mean 7,000, 78 to
88 % of blocks of 256 tokens seen before, nearly all within one user (intra-user 89.4 % of 89.7 %), at most 128 output
tokens, open-loop arrivals. Ours: every user has a prefix of 2,048 tokens of its own; a conversation adds blocks turn by
turn and starts anew with a fixed chance; users are drawn by a Zipf law, arrivals are Poisson.
"""

from __future__ import annotations

import random
from itertools import accumulate

from experiments.fleet import Prompt

BLOCK_TOKENS = 256
PREFIX_BLOCKS = 8
USERS = 580
ANEW = 0.18  # chance that a user's next request starts a new conversation
ADDED_TOKENS = 1_300  # a turn adds, on average, exponentially distributed
USER_SKEW = 0.6
OUTPUT_TOKENS = 128


def art_like(requests: int, *, tokens_per_s: float, seed: int) -> list[Prompt]:
    """The prompts in order of arrival; about `tokens_per_s` prompt tokens are asked per second."""
    rng = random.Random(f"art/{seed}")
    weights = list(accumulate((rank + 1) ** -USER_SKEW for rank in range(USERS)))
    chats: dict[int, tuple[int, int]] = {}  # user -> (conversation, tokens so far beyond the prefix)
    talks = 0
    made: list[Prompt] = []
    now_s = 0.0
    for _ in range(requests):
        user = rng.choices(range(USERS), cum_weights=weights)[0]
        talk, tokens = chats.get(user, (-1, 0))
        if talk < 0 or rng.random() < ANEW:
            talk, tokens, talks = talks, 0, talks + 1
        tokens += 1 + int(rng.expovariate(1 / ADDED_TOKENS))
        chats[user] = talk, tokens
        total = PREFIX_BLOCKS * BLOCK_TOKENS + tokens
        own = -(-tokens // BLOCK_TOKENS)
        blocks = [user * PREFIX_BLOCKS + i for i in range(PREFIX_BLOCKS)]
        blocks += [10_000_000 + talk * 1_000 + i for i in range(own)]
        now_s += rng.expovariate(tokens_per_s / 7_000)
        prompt = Prompt(
            arrival_us=int(now_s * 1e6), blocks=blocks, input_tokens=total, output_tokens=OUTPUT_TOKENS, ingress=0,
            session=user + 1,
        )  # fmt: skip
        made.append(prompt)
    return made


# Three engines of two L40S each. Published: .086 to .134 ms per uncached token, 282 to 738 ms per request of which the
# round trip is 26 to 466, 983,549 tokens of KV, 64 requests at once. Assumed: how a decode step grows with the batch.
FLEET = (
    "link=three_regions", "driver.node_count=3", f"driver.block_tokens={BLOCK_TOKENS}", "driver.pool_tokens=983549",
    "driver.kv_bytes_per_token=20480", "driver.prefill.c0_ps=250000000000", "driver.prefill.c1_ps_per_token=100000000",
    "driver.prefill.c2_ps_per_token=0", "driver.prefill.c3_ps_per_token2=0", "driver.prefill.c4_ps_per_token2=0",
    "driver.decode_step_ps=6000000000", "driver.decode_ps_per_request=500000000", "driver.decode_ps_per_token=0",
    "driver.batch_max=64", "driver.admitted_max=8", "actions=[recompute,resident,route]",
)  # fmt: skip
