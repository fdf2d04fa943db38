"""Whatever the core can say arrives as it was said; whatever is no message is refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvshare_research.core import messages as m
from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import RemoteError
from kvshare_research.core.nouns import Outcome, Status
from kvshare_research.transport import wire

KINDS = sorted({*get_args(m.RouterEvent), *get_args(m.RouterEffect), *get_args(m.WorkerEvent), *get_args(m.WorkerEffect)}, key=lambda t: t.__name__)  # fmt: skip

st.register_type_strategy(int, st.integers(min_value=-(1 << 62), max_value=1 << 62))
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(bytes, st.binary(max_size=40))
st.register_type_strategy(
    Outcome,
    st.builds(
        Outcome, request_id=st.integers(0, 1 << 40), tenant_id=st.integers(0, 9), application=st.text(max_size=5),
        status=st.sampled_from([Status.REJECTED, Status.FAILED]), output_tokens=st.lists(st.integers(0, 9)).map(tuple),
        quoted_us=st.lists(st.tuples(st.text(max_size=3), st.integers(0, 9)), max_size=3).map(tuple),
    ),
)  # fmt: skip
names = st.lists(st.text(max_size=5), unique=True, max_size=3).map(tuple)
users = st.lists(st.tuples(st.text(max_size=5), st.integers(1, 9)), unique=True, max_size=3).map(tuple)
st.register_type_strategy(
    Directory,
    st.builds(
        Directory, tenants=names, groups=names, users=users, scopes=..., memberships=..., accounts=..., removed=...,
        revision=...,
    ),
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda t: t.__name__)
def test_core_messages_survive_the_wire(kind: type) -> None:
    @given(st.from_type(kind))
    def check(item: Any) -> None:
        assert wire.decode_core(kind.__name__, wire.encode_core(item)) == item
        envelope = wire.decode(wire.encode(3, wire.Deliver.of(item, b"\1\2")))
        assert envelope.case == 3
        assert isinstance(envelope.message, wire.Deliver)
        assert envelope.message.event() == item
        assert envelope.message.tokens == b"\1\2"

    check()


def test_a_directory_works_after_the_wire() -> None:
    sent = Directory(tenants=("a", "b"), groups=("g",)).granted(2, 1)
    got = wire.decode_core("DirectoryChanged", wire.encode_core(m.DirectoryChanged(directory=sent))).directory
    assert got.revoked(2, 1) == sent.revoked(2, 1)


@pytest.mark.parametrize(
    "message",
    [wire.FetchRefused(7, "no"), wire.Reset(2, {"a": [1, {"b": None}]}, True), wire.Measured(0, ((1, 2), (3, 4)))],
    ids=lambda x: type(x).__name__,
)
def test_driver_messages_survive_the_wire(message: wire.Message) -> None:
    assert wire.decode(wire.encode(1, message)) == wire.Envelope(1, message)


@given(st.binary(max_size=60))
def test_noise_is_refused_and_never_taken_for_a_message(data: bytes) -> None:
    with pytest.raises(RemoteError):
        wire.decode(data)


def test_another_version_is_named() -> None:
    data = bytearray(wire.encode(1, wire.Bye(0)))
    data[0] += 1
    with pytest.raises(RemoteError, match="wire version `2`, expected `1`"):
        wire.decode(data)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(RemoteError, match="Sabotage"):
        wire.decode_core("Sabotage", wire.encode_core(m.Ticked()))
