"""Reading a prompt out of its noisy KV tensors: `python -m experiments.privacy_negative.inversion [prompts]`.

The real SmolLM2. Who has the cache of a prompt and the model's weights knows, for each token of the vocabulary, its
keys (turned back by their position) and values in the first layer, and takes the nearest. Noise is a share of an
element's size, on all layers. Utility: how often the next token stays the same when what is reused is noisy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.privacy_negative.__main__ import epsilon_of
from kvshare_research.engine.smollm import SmolLm
from kvshare_research.privacy.bounds import clopper_pearson
from kvshare_research.workload.texts import load_application

APPLICATIONS = ("bicycles", "contracts", "maths", "museum", "triage", "code_review", "greenhouse", "shop_sql")
TOKENS, REUSED, RATIOS, WINDOWS = 144, 128, (0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 10.0), 2


def dictionary(network: Any) -> torch.Tensor:
    """Keys, not yet turned, and values of every token in the first layer: a row each."""
    layer = network.model.layers[0]
    given = layer.input_layernorm(network.model.embed_tokens.weight)
    return torch.cat([layer.self_attn.k_proj(given), layer.self_attn.v_proj(given)], 1)


def first_layer(network: Any, blocks: torch.Tensor) -> torch.Tensor:
    """The rows of a prompt as they lie in its blocks `[layer][K/V][block][head][token][dim]`, keys turned back."""
    keys, values = (blocks[0, which].permute(0, 2, 1, 3).flatten(0, 1) for which in (0, 1))
    count = keys.shape[0]
    cos, sin = network.model.rotary_emb(keys, torch.arange(count)[None])
    half = keys.shape[-1] // 2
    turned = torch.cat([-keys[..., half:], keys[..., :half]], -1)
    back = keys * cos[0][:, None] - turned * sin[0][:, None]
    return torch.cat([back.flatten(1), values.flatten(1)], 1)


def nearest(rows: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """The token whose row is nearest, in units of each column's spread."""
    spread = known.std(0)
    rows, known = rows / spread, known / spread
    return (known.square().sum(1)[None] - 2 * rows @ known.T).argmin(1)


def windows(engine: Any, application: str) -> list[Any]:
    """Stretches of an application's own text."""
    texts = load_application(application)
    tokens = engine.tokenizer.encode(texts.system + " ".join(q + " " + a for q, a in texts.examples))
    return [tokens[i * TOKENS : (i + 1) * TOKENS] for i in range(min(WINDOWS, len(tokens) // TOKENS))]


@torch.inference_mode()
def main(count: int) -> int:
    """A row per noise level: tokens read out, next tokens kept, and the epsilon such noise buys."""
    engine: Any = SmolLm(cache_root=str(Path.home() / ".cache/kvshare_research"), pool_bytes=64 << 20).load(0)
    torch.set_num_threads(1)
    network, pool = engine._network, engine.pool
    known, slots = dictionary(network), tuple(range(TOKENS // 16))
    reused = slots[: REUSED // 16]
    dims = engine.spec.head_dim
    per_token = dims * engine.spec.layer_count * engine.spec.kv_head_count * 2
    right, kept = np.zeros(len(RATIOS), int), np.zeros(len(RATIOS), int)
    generator = torch.Generator().manual_seed(0)
    prompts = [window for name in APPLICATIONS for window in windows(engine, name)][:count]
    for tokens in prompts:
        exact = engine.prefill(tokens, 0, TOKENS, slots).first_token
        clean = pool.blocks_LCBHTD[:, :, list(reused)].clone()
        size = clean.std(dim=(2, 3, 4, 5), keepdim=True)  # of an element, by layer, for keys and for values
        for i, ratio in enumerate(RATIOS):
            noisy = clean + ratio * size * torch.randn(clean.shape, generator=generator)
            pool.blocks_LCBHTD[:, :, list(reused)] = noisy
            found = nearest(first_layer(network, noisy), known).numpy()
            right[i] += int((found == tokens[:REUSED]).sum())
            kept[i] += int(engine.prefill(tokens, REUSED, TOKENS, slots).first_token == exact)
    print(f"{len(prompts)} prompts; epsilon: of a head's vector, a token, a block")
    print(f"{'noise / element':>16}{'tokens read':>13}{'next token kept (95 %)':>28}  epsilon")
    for i, ratio in enumerate(RATIOS):
        low, high = clopper_pearson(int(kept[i]), len(prompts), 0.025)
        epsilons = ["-"] * 3
        if ratio:
            epsilons = [f"{epsilon_of(ratio / (2 * n**0.5)):.3g}" for n in (dims, per_token, per_token * 16)]
        share, same = right[i] / (REUSED * len(prompts)), kept[i] / len(prompts)
        print(f"{ratio:16g}{share:13.3f}{same:12.2f} [{low:.2f}, {high:.2f}]      {', '.join(epsilons)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 16))
