"""Block hashes as other engines and routers make them, to compare, replay and publish in their terms. Never for sharing
between tenants: none of them is keyed, and some are 64 bits of a fast hash."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

HASH64 = (1 << 64) - 1
DYNAMO_SEED = 1337
_FNV_BASIS, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def cbor(value: Any) -> bytes:
    """Canonical CBOR (RFC 8949, section 4.2) of None, whole numbers from 0, bytes, text, and sequences of these."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _head(0, value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _head(3, len(text)) + text
    if isinstance(value, dict):
        pairs = sorted((cbor(k), cbor(v)) for k, v in value.items())
        return _head(5, len(pairs)) + b"".join(k + v for k, v in pairs)
    return _head(4, len(value)) + b"".join(cbor(item) for item in value)


def _head(kind: int, size: int) -> bytes:
    if size < 24:
        return bytes([kind << 5 | size])
    for code, form in ((24, ">B"), (25, ">H"), (26, ">I"), (27, ">Q")):
        if size < 1 << 8 * struct.calcsize(form):
            return bytes([kind << 5 | code]) + struct.pack(form, size)
    raise ValueError(f"{size} does not fit 64 bits")


def _blocks(tokens: Sequence[int], block_tokens: int) -> list[tuple[int, ...]]:
    return [tuple(tokens[i : i + block_tokens]) for i in range(0, len(tokens) - block_tokens + 1, block_tokens)]


def vllm_sha256_cbor(
    tokens: Sequence[int], block_tokens: int, seed: str, lora: str | None = None, salt: str | None = None
) -> list[bytes]:
    """vLLM's `sha256_cbor`: the seed is PYTHONHASHSEED; the salt is in the first block only, the adapter in all.

    The extra keys carry no tag, so an adapter and a salt of the same name give the same first block.
    """
    parent = hashlib.sha256(cbor(seed)).digest()
    hashes = []
    for i, block in enumerate(_blocks(tokens, block_tokens)):
        extra = tuple(x for x in (lora, salt if i == 0 else None) if x) or None
        parent = hashlib.sha256(cbor((parent, block, extra))).digest()
        hashes.append(parent)
    return hashes


def dynamo_local(tokens: Sequence[int], block_tokens: int, seed: int = DYNAMO_SEED) -> list[int]:
    """NVIDIA Dynamo's hash of each block's content alone: XXH3-64 of little-endian uint32. Needs `xxhash`."""
    import xxhash

    packed = (struct.pack(f"<{len(b)}I", *b) for b in _blocks(tokens, block_tokens))
    return [xxhash.xxh3_64_intdigest(p, seed) for p in packed]


def dynamo_sequence(local: Sequence[int], seed: int = DYNAMO_SEED) -> list[int]:
    """The chain over local hashes, of Dynamo and of Mooncake's RFC 1527. Needs `xxhash`."""
    import xxhash

    hashes: list[int] = []
    for value in local:
        hashes.append(xxhash.xxh3_64_intdigest(struct.pack("<QQ", hashes[-1], value), seed) if hashes else value)
    return hashes


def fnv1a_64(data: bytes, basis: int = _FNV_BASIS) -> int:
    """FNV-1a, 64 bits."""
    for byte in data:
        basis = ((basis ^ byte) * _FNV_PRIME) & HASH64
    return basis


def llmd_cbor_fnv(
    tokens: Sequence[int], block_tokens: int, model: str, seed: str = "", salt: str | None = None
) -> list[int]:
    """llm-d's request keys: FNV-1a over canonical CBOR of [parent, tokens, extra], from a seed and the model's name."""
    parent = fnv1a_64(cbor((fnv1a_64(seed.encode()), None, model)))
    hashes = []
    for i, block in enumerate(_blocks(tokens, block_tokens)):
        extra = [{"Hash": salt}] if salt and i == 0 else None
        parent = fnv1a_64(cbor((parent, block, extra)))
        hashes.append(parent)
    return hashes


def sglang_pages(tokens: Sequence[int], page_tokens: int) -> list[bytes]:
    """SGLang's page hashes: SHA-256 of the digest before and each token as little-endian uint32. No salt enters."""
    parent, hashes = b"", []
    for block in _blocks(tokens, page_tokens):
        parent = hashlib.sha256(parent + struct.pack(f"<{len(block)}I", *block)).digest()
        hashes.append(parent)
    return hashes


def sglang_event_id(page_hash: bytes) -> int:
    """The id of a page in SGLang's events: the first 8 bytes as a signed number."""
    return int.from_bytes(page_hash[:8], "big", signed=True)
