"""Block hashes: which blocks are "the same" for whom. A hash can only be made through a `Namespace`.

Two blocks have equal hashes exactly when they have the same scope, model, adapter, dtype, block size and
template version, the same tokens, and the same prefix before them (up to collisions of a keyed 128-bit hash).
Whoever lacks the root secret can neither make nor link hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import HASH_BYTES, TOKEN_NAME_BYTES, Chain, Segment
from kvshare_research.core.rights import GROUP, PUBLIC, SESSION, TENANT, USER, Scope, tightens
from kvshare_research.index.hashing import ROOT_PARENT, Digests, Stretch, chain_digests, digests_of

from .detail import Detail
from .keys import KeyRing

_VERSION = b"kvshare-namespace-v2"
_TOKEN = b"token"  # before an encoding, which begins otherwise: the key of token names is no other key
_LENGTH_BYTES = 4
_TEXT, _NUMBER, _LIST = b"t", b"n", b"l"


def framed(tag: bytes, length: bytes, body: bytes) -> bytes:
    """One field of an encoding: 1-byte tag, fixed-width length of the body, body. Uniquely decodable (theorem I8)."""
    return tag + length + body


def _field(tag: bytes, body: bytes) -> bytes:
    return framed(tag, len(body).to_bytes(_LENGTH_BYTES, "big"), body)


def _encode(value: str | int | tuple[str, ...]) -> bytes:
    if isinstance(value, str):
        return _field(_TEXT, value.encode())
    if isinstance(value, int):
        return _field(_NUMBER, value.to_bytes(8, "big"))
    return _field(_LIST, b"".join(_encode(item) for item in value))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpace:
    """Everything beside scope and tokens that KV bytes depend on."""

    model: str  # fingerprint of weights and architecture
    adapter: str = ""  # fingerprint of a LoRA or other adapter, empty if none
    dtype: str
    block_tokens: int
    template: str = ""  # version of tokenizer and chat template

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise ConfigError(f"block_tokens is `{self.block_tokens}`, expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Where a block hash is valid: a scope (by names, so that numbering does not matter) and a model space."""

    scope: tuple[str, ...]
    space: ModelSpace

    def encode(self) -> bytes:
        """Bytes that are equal only for equal namespaces: tagged, length-prefixed, versioned."""
        return _encoded(self)


@lru_cache(maxsize=4096)
def _encoded(namespace: Namespace) -> bytes:
    fields: Iterable[str | int | tuple[str, ...]] = (namespace.scope, *astuple(namespace.space))
    return _field(_VERSION[:1], _VERSION) + b"".join(_encode(f) for f in fields)


def scope_path(scope: Scope, directory: Directory) -> tuple[str, ...]:
    """The scope by names: ("public",), ("group", name), ("tenant", name), ("user", tenant, name), ("session", id),
    ("sealed",)."""
    if scope.level == PUBLIC:
        return ("public",)
    if scope.level == GROUP:
        return ("group", directory.groups[scope.party - 1])
    if scope.level == TENANT:
        return ("tenant", directory.tenants[scope.party - 1])
    if scope.level == USER:
        name, tenant = directory.users[scope.party - 1]
        return ("user", directory.tenants[tenant - 1], name)
    return ("session", str(scope.party)) if scope.level == SESSION else ("sealed",)


def _namespace(directory: Directory, scope_id: int, space: ModelSpace) -> Namespace:
    return Namespace(scope=scope_path(directory.scopes[scope_id], directory), space=space)


BLOCKS = Detail()


def block_scopes(
    token_counts: Sequence[int], scope_ids: Sequence[int], block_tokens: int
) -> tuple[tuple[int, int], ...]:
    """`Chain.scope_ends` of a prompt: (scope id, end) of each run of full blocks, one run per scope.

    A block over several segments has the scope of its last token: scopes only tighten along a prompt.
    """
    full = sum(token_counts) // block_tokens
    ends: list[tuple[int, int]] = []
    token = first = 0
    for count, scope_id in zip(token_counts, scope_ids, strict=True):
        token += count
        end = min(token // block_tokens, full)
        if count and end > first:
            if ends and ends[-1][0] == scope_id:
                ends[-1] = (scope_id, end)
            else:
                ends.append((scope_id, end))
            first = end
    return tuple(ends)


def chain(
    tokens: NDArray[np.uint32],
    segments: Sequence[Segment],
    scope_ids: Sequence[int],
    *,
    directory: Directory,
    ring: KeyRing,
    space: ModelSpace,
    detail: Detail = BLOCKS,
) -> Chain:
    """The block hashes of a prompt whose `segments` have the effective `scope_ids`; full blocks only.

    The key switches where the scope tightens and the parent hash continues, so a public prefix has one
    hash for everybody while what follows it cannot be linked across scopes. Raises ConfigError when a length is
    negative, the lengths do not fit the tokens or a scope does not tighten. Hash and mark of a block are two parts of
    one digest.
    """
    asked = [(tokens, segments, scope_ids)]
    return chains(asked, directory=directory, ring=ring, space=space, detail=detail)[0]


Scoped = tuple[NDArray[np.uint32], Sequence[Segment], Sequence[int]]  # tokens, segments, effective scope ids


def chains(
    prompts: Sequence[Scoped], *, directory: Directory, ring: KeyRing, space: ModelSpace, detail: Detail = BLOCKS
) -> list[Chain]:
    """As `chain` of each; all together take little longer than one."""
    ends = [_scope_ends(*prompt, directory=directory, space=space) for prompt in prompts]
    scope_ids = {scope_id for runs in ends for scope_id, _ in runs}
    keys = {i: ring.key(_namespace(directory, i, space).encode()) for i in scope_ids}
    stretches = [
        stretch for (tokens, *_), runs in zip(prompts, ends, strict=True)
        for stretch in _stretches(tokens, runs, keys, space.block_tokens)
    ]  # fmt: skip
    digests = iter(digests_of(stretches, space.block_tokens) if stretches else ())
    return [
        _chain(prompt, runs, [next(digests) for _ in runs], directory, ring, space, detail)
        for prompt, runs in zip(prompts, ends, strict=True)
    ]


def _scope_ends(
    tokens: NDArray[np.uint32], segments: Sequence[Segment], scope_ids: Sequence[int], *, directory: Directory,
    space: ModelSpace,
) -> tuple[tuple[int, int], ...]:  # fmt: skip
    """`block_scopes` of the prompt, if its lengths fit and its scopes tighten; else ConfigError."""
    counts = [s.token_count for s in segments]
    if min(counts, default=0) < 0:  # what follows would be hashed under the scope before it
        raise ConfigError(f"segments have {counts} tokens, expected 0 or more in each")
    if sum(counts) != len(tokens):
        raise ConfigError(f"segments have {sum(counts)} tokens, the prompt has {len(tokens)}")
    scopes = [directory.scopes[i] for i in scope_ids]
    for before, after in pairwise(scopes):
        if not tightens(before, after):
            raise ConfigError(f"a segment of scope {after} may not follow {before}: scopes only tighten")
    return block_scopes(counts, scope_ids, space.block_tokens)


def _stretches(
    tokens: NDArray[np.uint32], ends: Sequence[tuple[int, int]], keys: Mapping[int, bytes], block_tokens: int
) -> Iterator[Stretch]:
    """Each run of full blocks of one scope, under the key of its namespace, going on after the one before."""
    first = 0
    for scope_id, end in ends:
        yield Stretch(keys[scope_id], tokens[first * block_tokens : end * block_tokens], first > 0)
        first = end


def _chain(
    prompt: Scoped, ends: tuple[tuple[int, int], ...], runs: Sequence[Digests], directory: Directory, ring: KeyRing,
    space: ModelSpace, detail: Detail,
) -> Chain:  # fmt: skip
    tokens, segments, scope_ids = prompt
    hashes, marks = b"".join([run.hashes for run in runs]), b"".join([run.marks for run in runs])
    token_names = b""
    if detail.reads == "tokens" and scope_ids:
        tail = (scope_ids[-1], -(-len(tokens) // space.block_tokens))  # which is no block but has tokens
        token_names = _token_names(tokens, hashes, (*ends, tail), directory, ring, space)
    unit_ends = detail.unit_ends(tokens, [s.token_count for s in segments], space.block_tokens)
    return Chain(
        hashes=hashes, scope_ends=ends, block_tokens=space.block_tokens, marks=marks, unit_ends=unit_ends,
        token_names=token_names,
    )  # fmt: skip


def _token_names(
    tokens: NDArray[np.uint32], hashes: bytes, ends: Sequence[tuple[int, int]], directory: Directory, ring: KeyRing,
    space: ModelSpace,
) -> bytes:  # fmt: skip
    """`Chain.token_names`: each chained from the block before its own, under a key of that block's namespace."""
    names, first = [], 0
    for scope_id, end in ends:
        key = ring.key(_TOKEN + _namespace(directory, scope_id, space).encode())
        for i in range(first, end):
            parent = hashes[(i - 1) * HASH_BYTES : i * HASH_BYTES] if i else b""
            block = tokens[i * space.block_tokens : (i + 1) * space.block_tokens]
            names.append(chain_digests(key, parent.ljust(len(ROOT_PARENT), b"\0"), block, 1).hashes)
        first = end
    return np.frombuffer(b"".join(names), np.uint8).reshape(-1, HASH_BYTES)[:, :TOKEN_NAME_BYTES].tobytes()
