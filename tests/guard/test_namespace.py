"""Namespaces, keys and chains: distinct stays distinct, equal stays equal everywhere, nothing leaks by accident."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import HASH_BYTES, Chain, Segment
from kvshare_research.core.rights import GROUP, PUBLIC, TENANT, Scope
from kvshare_research.guard.keys import KeyRing, RootSecret, hkdf_sha256
from kvshare_research.guard.namespace import ModelSpace, Namespace, block_scopes, chain

SPACE = ModelSpace(model="m", dtype="float32", block_tokens=16, template="t1")


def namespace(*scope: str, **changes: object) -> Namespace:
    return Namespace(scope=scope or ("public",), space=replace(SPACE, **changes))  # type: ignore[arg-type]


# ------------------------------------------------------------------ keys
def test_hkdf_gives_the_vectors_of_rfc_5869() -> None:
    """Appendix A.1 and A.3."""
    a1 = hkdf_sha256(b"\x0b" * 22, salt=bytes(range(13)), info=bytes(range(0xF0, 0xFA)), size_bytes=42)
    assert a1.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    a3 = hkdf_sha256(b"\x0b" * 22, salt=b"", info=b"", size_bytes=42)
    assert a3.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"


def test_a_secret_is_never_shown_pickled_or_copied() -> None:
    material = b"a secret of at least 32 bytes, really"
    root = RootSecret(material, origin="here")
    ring = KeyRing(root)
    key = ring.key(b"x")
    for thing in (root, ring):
        for shown in (repr(thing), str(thing), f"{thing}", f"{thing!r}"):
            assert not any(s in shown for s in ("secret of", material.hex(), key.hex()))
        with pytest.raises(TypeError):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            copy.deepcopy(thing)
        with pytest.raises((AttributeError, TypeError)):
            vars(thing)


def test_where_a_secret_comes_from(tmp_path: object) -> None:
    file = os.path.join(str(tmp_path), "root")
    with open(file, "wb") as handle:
        handle.write(b"f" * 32 + b"\n")
    os.chmod(file, 0o600)
    env = {"KVSHARE_ROOT_SECRET": "e" * 32}
    assert RootSecret.resolve(path=file, seed=1, environment=env).expose() == b"f" * 32
    assert RootSecret.resolve(path=None, seed=1, environment=env).expose() == b"e" * 32
    assert RootSecret.resolve(path=None, seed=1, environment={}).expose() == RootSecret.from_seed(1).expose()
    assert RootSecret.from_seed(1).expose() != RootSecret.from_seed(2).expose()
    with pytest.raises(ConfigError, match="KVSHARE_ROOT_SECRET"):
        RootSecret.resolve(path=None, seed=None, environment={})
    with pytest.raises(ConfigError, match="at least 32"):
        RootSecret.from_environment({"KVSHARE_ROOT_SECRET": "short"})
    with pytest.raises(ConfigError, match="cannot be read"):
        RootSecret.from_file(file + ".absent")
    os.chmod(file, 0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        RootSecret.from_file(file)


def test_a_refused_secret_is_not_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        RootSecret(b"hunter2", origin="here")
    assert "hunter2" not in str(caught.value)


# ------------------------------------------------------------------ encoding
ADVERSARIAL = [
    # an adapter name, a template or a scope with the same text must not be the same namespace
    (namespace("tenant", "x", adapter="X"), namespace("tenant", "x", template="X")),
    (namespace("tenant", "X", adapter=""), namespace("tenant", "", adapter="X")),
    (namespace("tenant", "X"), namespace("group", "X")),
    # concatenation must not be ambiguous
    (namespace("tenant", "1x", model="m"), namespace("tenant", "x", model="m1")),
    (namespace("tenant", "org_1", adapter="2345"), namespace("tenant", "org_12345", adapter="")),
    (namespace("tenant", "a", "b"), namespace("tenant", "ab")),
    (namespace("tenant", "a\x00b"), namespace("tenant", "a", "b")),
    (namespace("user", "a", "b:c"), namespace("user", "a:b", "c")),
    (namespace(block_tokens=16), namespace(block_tokens=32)),
    (namespace(dtype="float16"), namespace(dtype="bfloat16")),
]


@pytest.mark.parametrize(("one", "other"), ADVERSARIAL)
def test_adversarial_pairs_have_different_keys(one: Namespace, other: Namespace) -> None:
    assert one.encode() != other.encode()
    ring = KeyRing(RootSecret.from_seed(0))
    assert ring.key(one.encode()) != ring.key(other.encode())


text = st.text(st.sampled_from("ab1\x00:\x04t"), max_size=3)
spaces = st.builds(ModelSpace, model=text, adapter=text, dtype=text, block_tokens=st.integers(1, 3), template=text)
namespaces = st.builds(Namespace, scope=st.lists(text, max_size=3).map(tuple), space=spaces)


@given(namespaces, namespaces)
@settings(max_examples=500, deadline=None)
def test_encoding_is_injective(one: Namespace, other: Namespace) -> None:
    assert (one.encode() == other.encode()) == (one == other)


@given(st.lists(namespaces, max_size=4, unique=True))
@settings(max_examples=100, deadline=None)
def test_no_encoding_is_a_prefix_of_another(many: list[Namespace]) -> None:
    encodings = [n.encode() for n in many]
    for i, one in enumerate(encodings):
        assert not any(other.startswith(one) for j, other in enumerate(encodings) if i != j)


def test_every_field_of_the_model_space_counts() -> None:
    base = namespace()
    for name in ("model", "adapter", "dtype", "template"):
        assert namespace(**{name: "other"}).encode() != base.encode(), name
    assert len(astuple(SPACE)) == 5  # a new field must be named above


# ------------------------------------------------------------------ chains
DIRECTORY = Directory(
    tenants=("acme", "bell"),
    groups=("guild", "club"),
    scopes=(Scope(PUBLIC, 0), Scope(GROUP, 1), Scope(TENANT, 1), Scope(TENANT, 2), Scope(GROUP, 2)),
)


def hashes(
    tokens: list[int], counts: list[int], scopes: list[int], seed: int = 0, directory: Directory = DIRECTORY
) -> Chain:
    return chain(
        np.array(tokens, dtype=np.uint32),
        [Segment(scope_id=s, token_count=c) for s, c in zip(scopes, counts, strict=True)],
        scopes,
        directory=directory,
        ring=KeyRing(RootSecret.from_seed(seed)),
        space=SPACE,
    )


GOLDEN = """\
from tests.guard.test_namespace import hashes
print(hashes(list(range(80)), [40, 40], [0, 2]).hashes.hex())
"""
GOLDEN_HASHES = (
    "748345db712608e9d32f48fe49f63204ce61a9d6e34afe0ddcf7cd28b321deb1805790cd73cb919b06a12bfc8ecee69e"
    "37c69191081b5edbcb350bcd7a6e47820de879d8932b0c5ec230784709b7b411"
)


def test_golden_hashes_in_fresh_processes_with_any_hash_seed() -> None:
    """A change of these is a change of wire format: caches of the version before are lost."""
    assert hashes(list(range(80)), [40, 40], [0, 2]).hashes.hex() == GOLDEN_HASHES
    for hash_seed in ("0", "12345"):
        out = subprocess.run(
            [sys.executable, "-c", GOLDEN],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        assert out.stdout.strip() == GOLDEN_HASHES


def test_the_public_prefix_is_one_for_all_and_the_tails_are_unlinkable() -> None:
    tokens = list(range(96))
    acme, bell = hashes(tokens, [48, 48], [0, 2]), hashes(tokens, [48, 48], [0, 3])
    assert acme.scope_ends == ((0, 3), (2, 6))
    assert acme.block_hashes(0, 3) == bell.block_hashes(0, 3)
    assert not set(acme.block_hashes(3, 6)) & set(bell.block_hashes(3, 6))


def test_another_root_secret_shares_nothing() -> None:
    one, other = (hashes(list(range(64)), [64], [0], seed=s) for s in (1, 2))
    assert not set(one.block_hashes(0, 4)) & set(other.block_hashes(0, 4))


def test_renumbering_the_directory_changes_no_hash() -> None:
    moved = replace(DIRECTORY, tenants=("new", "bell", "acme"), scopes=(Scope(PUBLIC, 0), Scope(TENANT, 3)))
    assert (
        hashes(list(range(64)), [32, 32], [0, 1], directory=moved).hashes
        == hashes(list(range(64)), [32, 32], [0, 2]).hashes
    )


def test_a_block_over_two_segments_has_the_tighter_scope() -> None:
    made = hashes(list(range(50)), [20, 30], [0, 2])
    assert made.block_count == 3
    assert made.scope_ends == ((0, 1), (2, 3))


def test_scopes_that_widen_or_jump_are_refused() -> None:
    for scopes in ([2, 0], [1, 4], [2, 3]):
        with pytest.raises(ConfigError, match="only tighten"):
            hashes(list(range(64)), [32, 32], scopes)
    with pytest.raises(ConfigError, match="60 tokens, the prompt has 64"):
        hashes(list(range(64)), [32, 28], [0, 2])


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.integers(1, 17),
    st.data(),
)
@settings(max_examples=300, deadline=None)
def test_block_scopes_is_the_tightest_scope_in_each_block(
    counts: list[int], block_tokens: int, data: st.DataObject
) -> None:
    ids = sorted(data.draw(st.lists(st.integers(0, 4), min_size=len(counts), max_size=len(counts))))
    per_token = [s for s, c in zip(ids, counts, strict=True) for _ in range(c)]
    full = len(per_token) // block_tokens
    want = [max(per_token[b * block_tokens : (b + 1) * block_tokens]) for b in range(full)]
    ends = block_scopes(counts, ids, block_tokens)
    got, first = [], 0
    for scope, end in ends:
        assert end > first
        got += [scope] * (end - first)
        first = end
    assert got == want
    assert [s for s, _ in ends] == sorted({s for s, _ in ends})


@given(st.lists(st.integers(0, 3), min_size=64, max_size=64), st.lists(st.integers(0, 3), min_size=64, max_size=64))
@settings(max_examples=100, deadline=None)
def test_equal_hash_means_equal_prefix(a: list[int], b: list[int]) -> None:
    x, y = hashes(a, [64], [0]), hashes(b, [64], [0])
    for i in range(4):
        assert (x.block_hash(i) == y.block_hash(i)) == (a[: (i + 1) * 16] == b[: (i + 1) * 16])
    assert len(x.hashes) == 4 * HASH_BYTES


@pytest.mark.parametrize("counts", [(20, -8, 4), (4, -4, 16), (-4, 4, 16)])
def test_no_length_is_negative(counts: tuple[int, ...]) -> None:
    """The lengths add up to the prompt, and the private tail would begin under the wider scope."""
    with pytest.raises(ConfigError, match="expected 0 or more"):
        hashes(list(range(sum(counts))), list(counts), [0, 1, 2])


def test_two_parties_never_have_one_name() -> None:
    for names in ({"tenants": ("a", "a")}, {"groups": ("g", "g")}, {"users": (("u", 1), ("u", 1))}):
        with pytest.raises(ConfigError, match="in the directory twice"):
            Directory(**{"tenants": ("a",), "groups": (), **names})  # type: ignore[arg-type]
    Directory(tenants=("a", "b"), groups=("a",), users=(("u", 1), ("u", 2)))
