"""Frames of both generations: recorded bytes, round trips, and what must not stop a decoder."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvshare_research.core.errors import RemoteError
from kvshare_research.events.frames import Batch, Cleared, Removed, Stored, decode, encode, hash64, seq_frame

ARRAY_FRAME = bytes.fromhex(
    "93cb3ff8000000000000939aab426c6f636b53746f726564920102c0940001020302c0a3475055c0c0c094ac426c6f636b52656d6f766564"
    "9101a3475055c091b0416c6c426c6f636b73436c656172656400"
)
MAP_FRAME = bytes.fromhex(
    "93cb3ff80000000000009388a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573920102b1706172656e745f626c6f"
    "636b5f68617368c0a9746f6b656e5f6964739400010203aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a9"
    "6c6f72615f6e616d65c083a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739101a66d656469756da347505581"
    "a474797065b0416c6c426c6f636b73436c656172656400"
)
EVENTS = (Stored(hashes=(1, 2), parent=None, tokens=(0, 1, 2, 3), block_tokens=2), Removed(hashes=(1,)), Cleared())


@pytest.mark.parametrize(("generation", "frame"), [("array", ARRAY_FRAME), ("map", MAP_FRAME)])
def test_both_generations_are_the_recorded_bytes(generation: str, frame: bytes) -> None:
    assert decode(frame) == Batch(time_s=1.5, events=EVENTS, rank=0)
    assert encode(1.5, EVENTS, 0, generation) == frame


def typed(positional: bool) -> msgspec.msgpack.Decoder:
    """A reader as strict as those of engines: fixed types, and fixed places or names, written apart from ours."""
    shape = {"array_like": positional, "tag_field": None if positional else "type"}
    hashes, medium = ("block_hashes", list[int]), ("medium", str | None)
    prompt = [("parent_block_hash", int | None), ("token_ids", list[int]), ("block_size", int), ("lora_id", int | None)]
    kinds = [
        msgspec.defstruct("Stored", [hashes, *prompt, medium], tag="BlockStored", **shape),
        msgspec.defstruct("Removed", [hashes, medium], tag="BlockRemoved", **shape),
        msgspec.defstruct("Cleared", [], tag="AllBlocksCleared", **shape),
    ]
    fields = [("ts", float), ("events", list[kinds[0] | kinds[1] | kinds[2]]), ("data_parallel_rank", int | None, None)]
    return msgspec.msgpack.Decoder(msgspec.defstruct("Batch", fields, array_like=True))


@pytest.mark.parametrize("generation", ["array", "map"])
def test_a_third_partys_typed_reader_understands_us(generation: str) -> None:
    """Also a block without its tokens, one in host memory and one with a tenant, whose fields such a reader may not know."""
    private = Stored(hashes=(2**64 - 1,), parent=7, tokens=(), block_tokens=16)
    more = (
        private,
        Stored(hashes=(9,), parent=None, tokens=(1,), block_tokens=1, tier=1, tenant="a"),
        Removed(hashes=(9,), tier=1),
    )
    batch = typed(generation == "array").decode(encode(1.5, [*EVENTS, *more], 3, generation))
    assert (batch.ts, batch.data_parallel_rank) == (1.5, 3)
    assert [type(e).__name__ for e in batch.events] == ["Stored", "Removed", "Cleared", "Stored", "Stored", "Removed"]
    ours = [e for e in (*EVENTS, *more) if isinstance(e, Stored)]
    theirs = [e for e in batch.events if type(e).__name__ == "Stored"]
    assert [(tuple(e.block_hashes), e.parent_block_hash, tuple(e.token_ids), e.block_size) for e in theirs] == [
        (e.hashes, e.parent, e.tokens, e.block_tokens) for e in ours
    ]
    assert [e.medium for e in batch.events if hasattr(e, "medium")] == ["GPU", "GPU", "GPU", "CPU", "CPU"]


def test_sequence_numbers_travel_big_endian() -> None:
    assert seq_frame(7).hex() == "0000000000000007"
    assert seq_frame(-1).hex() == "ffffffffffffffff"


HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3).map(tuple)
SOME_EVENT = st.one_of(
    st.builds(
        lambda hashes, parent, size, tier, tenant: Stored(
            hashes=hashes,
            parent=parent,
            tokens=tuple(range(size * len(hashes))),
            block_tokens=size,
            tier=tier,
            tenant=tenant,
        ),
        HASHES,
        st.none() | st.integers(0, 2**64 - 1),
        st.integers(1, 4),
        st.integers(0, 2),
        st.sampled_from(["", "a"]),
    ),
    st.builds(lambda hashes, tier: Removed(hashes=hashes, tier=tier), HASHES, st.integers(0, 2)),
    st.just(Cleared()),
)


@given(events=st.lists(SOME_EVENT, max_size=4), generation=st.sampled_from(["map", "array"]))
def test_what_we_publish_is_what_we_read(events: list, generation: str) -> None:
    batch = decode(encode(2.0, events, 3, generation))
    assert (batch.events, batch.rank, batch.problems) == (tuple(events), 3, {})


def test_older_and_newer_arrays_and_unknown_fields_are_read() -> None:
    short = ["BlockStored", [1], None, [5, 6], 2]
    long = ["BlockStored", [2], 1, [7, 8], 2, None, "CPU", None, None, 0, "full", 128, "from the future"]
    named = {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU", "why": "future"}
    batch = decode(msgspec.msgpack.encode([1.0, [short, long, named]]))
    assert [getattr(e, "tier", None) for e in batch.events] == [0, 1, 1]
    assert batch.problems == {}


def test_a_bad_event_is_counted_and_the_rest_of_its_batch_kept() -> None:
    bad = [["BlockStored", [1]], 7, {"no": "type"}, ["BlockStored", ["x"], None, [], 2], ["Renamed"], None]
    batch = decode(msgspec.msgpack.encode([1.0, [*bad, ["AllBlocksCleared"]], None]))
    assert batch.events == (Cleared(),)
    assert batch.problems == {"malformed event": 5, "unknown event type `Renamed`": 1}


def test_the_schema_with_a_tenant_is_read() -> None:
    event = {
        "event_type": "stored", "seq_hashes": [9], "parent_hash": None, "token_ids": [1, 2], "block_size": 2,
        "tenant_id": "hospital", "medium": "cpu",
    }  # fmt: skip
    (stored,) = decode(msgspec.msgpack.encode([1.0, [event]])).events
    assert (stored.hashes, stored.tenant, stored.tier) == ((9,), "hospital", 1)


@pytest.mark.parametrize("frame", [MAP_FRAME[:-9], b"", b"\xc1", b"{}", msgspec.msgpack.encode(7), MAP_FRAME + b"\0"])
def test_what_is_no_batch_is_an_error_of_the_sender(frame: bytes) -> None:
    with pytest.raises(RemoteError):
        decode(frame)


def test_hashes_of_all_kinds_meet_in_64_bits() -> None:
    digest = bytes.fromhex("d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c")
    assert hash64(digest) == 12687895063098490012
    assert hash64(-1) == 2**64 - 1
    for wrong in (b"short", True, None, 1.5):
        with pytest.raises((TypeError, ValueError)):
            hash64(wrong)
