"""Hashes of other engines: recorded vectors. `verified` ones are constants of those projects' own tests."""

from __future__ import annotations

import pytest

from kvshare_research.index import interop

TOKENS = list(range(32))


def test_dynamo_verified() -> None:
    pytest.importorskip("xxhash")
    local = interop.dynamo_local(list(range(1, 13)), 4)
    assert local == [14643705804678351452, 16777012769546811212, 483935686894639516]
    assert interop.dynamo_sequence(local) == [14643705804678351452, 4945711292740353085, 12583592247330656132]
    local = interop.dynamo_local(TOKENS, 16)
    assert local == [15310707395893867146, 15292316782987903195]
    assert interop.dynamo_sequence(local)[1] == 13769157705258532664


def test_llmd_verified_and_with_a_salt() -> None:
    prompt = [8197, 438, 322, 18926, 432, 45600, 49]
    model = "ibm-granite/granite-3.1-8b-instruct"
    assert interop.llmd_cbor_fnv(prompt, 4, model) == [1334984470577408192]
    assert interop.llmd_cbor_fnv(TOKENS, 16, "m") == [7711063176051622293, 3714816549193055456]
    salted = interop.llmd_cbor_fnv(TOKENS, 16, "m", salt="tenantA")
    assert salted == [15103589375377420097, 9536588643987748629]


def test_vllm_and_its_untagged_extra_keys() -> None:
    hashes = [h.hex() for h in interop.vllm_sha256_cbor(TOKENS, 16, "0")]
    assert hashes == [
        "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
        "fedd9e4abebebbe6f6cf96b682f08d316063fe2f22a5c552192dd62904fcccac",
    ]
    salted = [h.hex() for h in interop.vllm_sha256_cbor(TOKENS, 16, "0", salt="tenantA")]
    assert salted == [
        "323f9fbc8926c7b8e0b3235d28d959376fac2148fd2466c4748332152cccbb42",
        "ec7b66dff187e06291a93e4bc3584e78e6ec2e83e9a9f04ae3202373c0f2e034",
    ]
    as_salt = interop.vllm_sha256_cbor(TOKENS, 16, "0", salt="X")
    as_lora = interop.vllm_sha256_cbor(TOKENS, 16, "0", lora="X")
    assert as_salt[0] == as_lora[0]
    assert as_salt[1] != as_lora[1]


def test_sglang() -> None:
    pages = interop.sglang_pages(TOKENS, 16)
    assert pages[0].hex() == "5d85718ec594b982c252d0279e5966ffca33a5eaf2a455038d3ab331fde70cea"
    assert [interop.sglang_event_id(p) for p in pages] == [6738917275443968386, 5080553031686747138]


def test_cbor_lengths() -> None:
    assert interop.cbor([23, 24, 256, 65536, 1 << 32]).hex() == "851718181901001a000100001b0000000100000000"
    assert interop.cbor("é").hex() == "62c3a9"
    with pytest.raises(ValueError, match="64 bits"):
        interop.cbor(1 << 64)
