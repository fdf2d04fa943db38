"""Emulated links delay and pace as configured, and lose or reorder nothing of one pair."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from kvshare_research.core.errors import ConfigError
from kvshare_research.transport.link import UniformLink
from kvshare_research.transport.matrix import RegionLink
from kvshare_research.transport.mpi import Channel, Received
from kvshare_research.transport.shaped import LinkClock, ShapedEndpoint

CONF = Path(__file__).parents[2] / "conf" / "link"


class Wire:
    """Remembers what was really sent, and when."""

    def __init__(self) -> None:
        self.now_us = 0
        self.sent: list[tuple[int, int, bytes]] = []

    def send(self, rank: int, channel: Channel, data: Any) -> None:
        self.sent.append((self.now_us, rank, bytes(data)))

    def poll(self) -> list[Received]:
        return []

    def unsent_bytes(self) -> int:
        return 0

    def in_motion(self) -> bool:
        return False


@given(st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 2_000_000)), min_size=1, max_size=20))
def test_a_link_carries_one_after_the_other_at_its_rate(messages: list[tuple[int, int]]) -> None:
    clock = LinkClock(UniformLink(rtt_us=10_000, rate_bits_per_s=10**9, label="emulated"))
    now, dues = 0, []
    for wait, size in messages:
        now += wait
        dues.append((now, size, clock.due_us(0, 1, size, now)))
    for at, size, due in dues:
        assert due >= at + 5_000 + size * 8 / 1000 - 1
    for (_, _, first), (at, size, second) in pairwise(dues):
        expected = max(at + 5_000, first) + size * 8 / 1000
        assert abs(second - expected) <= 2
    assert clock.due_us(1, 0, 0, 0) == 5_000, "the other direction is another link"


def test_messages_leave_when_due_and_never_before() -> None:
    wire = Wire()
    shaped = ShapedEndpoint(
        wire, UniformLink(rtt_us=10_000, rate_bits_per_s=8_000_000, label="emulated"), lambda: wire.now_us
    )
    shaped.send_over(0, 1, 2, Channel.BLOCKS, b"a" * 1000)  # 1000 us at 1 byte per us, then 5000 us
    shaped.send_over(0, 1, 2, Channel.CONTROL, b"b" * 500)
    shaped.send_over(0, 2, 3, Channel.CONTROL, b"c")
    shaped.send_after_hop(0, 0, 0, Channel.CONTROL, b"own ingress")
    shaped.send_after_hop(0, 1, 0, Channel.CONTROL, b"other ingress")
    shaped.send(0, Channel.CONTROL, b"log")
    assert [d for _, _, d in wire.sent] == [b"own ingress", b"log"]
    assert shaped.unsent_bytes() == 1501 + len(b"other ingress")
    while (due := shaped.next_due_us()) is not None:
        wire.now_us = due
        shaped.poll()
    assert [(t, r, d[:1]) for t, r, d in wire.sent[2:]] == [
        (5_000, 0, b"o"), (5_001, 3, b"c"), (6_000, 2, b"a"), (6_500, 2, b"b"),
    ]  # fmt: skip


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda p: p.stem)
def test_configured_links_say_what_they_are(path: Path) -> None:
    link = instantiate(OmegaConf.create({"data_root": None, "link": OmegaConf.load(path)}).link)
    assert link.label == ("measured" if path.stem == "loopback" else "emulated")
    if isinstance(link, RegionLink):
        with pytest.raises(ConfigError, match="set `data_root`"):
            link.rtt_between_us(0, 1)
    else:
        assert link.rtt_between_us(1, 1) == 0


def test_a_link_may_not_call_itself_measured_when_it_is_shaped() -> None:
    with pytest.raises(ConfigError, match="`label` is `measured`, expected `emulated`"):
        UniformLink(rtt_us=5)
    with pytest.raises(ConfigError, match="`rate_bits_per_s` is `0`"):
        UniformLink(rate_bits_per_s=0, label="emulated")
