"""Chats like those of ART-Chat-2.5M, made from its published statistics; the trace itself is not public here.

Published of the windows of GORGO v3 (arXiv 2602.11688): about 580 users, median input 5,700 tokens, mean 7,000, 78 to
88 % of blocks of 256 tokens seen before, nearly all within one user (intra-user 89.4 % of 89.7 %), at most 128 output
tokens, open-loop arrivals, 81 to 88 % hit with pools of a million tokens. Ours: every user has a prefix of 2,048 tokens
of its own and comes once, for about a sixth of the window; a conversation adds tokens turn by turn and starts anew with
a fixed chance. Without such visits the pools could not reach the published hits.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import accumulate

from experiments.fleet import Prompt

BLOCK_TOKENS = 256
PREFIX_BLOCKS = 8
USERS = 580
ANEW = 0.18  # chance that a user's next request starts a new conversation
ADDED_TOKENS = 1_300  # a turn adds, on average, exponentially distributed
USER_SKEW = 0.6
VISIT_RATIO = 1 / 6  # of the window
OUTPUT_TOKENS = 128


def art_like(requests: int, *, tokens_per_s: float, seed: int) -> list[Prompt]:
    """The prompts in order of arrival; about `tokens_per_s` prompt tokens are asked per second."""
    rng = random.Random(f"art/{seed}")
    window_s = requests * 7_000 / tokens_per_s
    users = max(1, USERS * requests // 7_600)
    weights = list(accumulate((rank + 1) ** -USER_SKEW for rank in range(users)))
    visits = Counter(rng.choices(range(users), cum_weights=weights, k=requests))
    asked: list[tuple[float, int]] = []
    for user, count in sorted(visits.items()):
        time_s = rng.uniform(0, window_s)
        for _ in range(count):
            time_s += rng.expovariate(count / (VISIT_RATIO * window_s))
            asked.append((time_s % window_s, user))
    chats: dict[int, tuple[int, int]] = {}  # user -> (conversation, tokens so far beyond the prefix)
    talks = 0
    made: list[Prompt] = []
    for time_s, user in sorted(asked):
        talk, tokens = chats.get(user, (-1, 0))
        if talk < 0 or rng.random() < ANEW:
            talk, tokens, talks = talks, 0, talks + 1
        tokens += 1 + int(rng.expovariate(1 / ADDED_TOKENS))
        chats[user] = talk, tokens
        blocks = [user * PREFIX_BLOCKS + i for i in range(PREFIX_BLOCKS)]
        blocks += [10_000_000 + talk * 1_000 + i for i in range(-(-tokens // BLOCK_TOKENS))]
        prompt = Prompt(
            arrival_us=int(time_s * 1e6), blocks=blocks, input_tokens=PREFIX_BLOCKS * BLOCK_TOKENS + tokens,
            output_tokens=OUTPUT_TOKENS, ingress=0, session=user + 1,
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
    "driver.batch_max=64", "limits.admitted_max=8", "actions=[recompute,resident,route]",
)  # fmt: skip
