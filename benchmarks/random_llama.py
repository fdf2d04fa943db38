"""A Llama of a given shape with random weights, in a folder that `engine=huggingface engine.model=<folder>` takes.

Speed depends on shapes, not on values: this measures a large model where no weights can be had. Answers mean nothing.

    python -m benchmarks.random_llama <folder> <tokenizer.json> [1b|3b|8b]
"""

from __future__ import annotations

import shutil
from argparse import ArgumentParser
from pathlib import Path

# hidden size, layers, heads, KV heads, MLP size: the published shapes of Llama 3.2 1B, 3.2 3B and 3.1 8B
SHAPES = {
    "1b": (2048, 16, 32, 8, 8192),
    "3b": (3072, 28, 24, 8, 8192),
    "8b": (4096, 32, 32, 8, 14336),
}


def main(folder: str, tokenizer: str, shape: str = "1b") -> None:
    """The folder holds config, bf16 weights and tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, layers, heads, kv_heads, intermediate = SHAPES[shape]
    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        vocab_size=49_152,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.03,
    )
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        network = LlamaForCausalLM(config).to(torch.bfloat16)
    network.save_pretrained(folder)
    shutil.copy(tokenizer, Path(folder) / "tokenizer.json")


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m benchmarks.random_llama", description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where the model goes")
    parser.add_argument("tokenizer", help="a tokenizer.json")
    parser.add_argument("shape", nargs="?", default="1b", choices=SHAPES)
    main(**vars(parser.parse_args()))
