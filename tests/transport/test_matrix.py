"""Links that differ by pair: given as a square, or read from measurements between cloud regions."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from kvshare_research.core.errors import ConfigError, did_you_mean
from kvshare_research.transport.matrix import LOCAL_BITS_PER_S, LOCAL_RTT_US, MatrixLink, RegionLink


def test_nodes_take_turns_in_places() -> None:
    link = MatrixLink(rtt_us=((5, 70), (80, 6)), rate_bits_per_s=((9, 2), (3, 8)))
    assert [link.rtt_between_us(0, reader) for reader in range(4)] == [0, 70, 5, 70]
    assert (link.rtt_between_us(1, 2), link.bits_per_s(1, 2), link.bits_per_s(1, 3)) == (80, 3, 8)
    assert link.bits_per_s(1, 1) is None


@pytest.mark.parametrize("rtt", [(), ((1, 2),), ((1,), (1,)), ((-1, 1), (1, 1))])
def test_what_is_no_square_of_figures_is_refused(rtt: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ConfigError):
        MatrixLink(rtt_us=rtt, rate_bits_per_s=((1, 1), (1, 1)))


def measured(folder: Path) -> str:
    (folder / "network").mkdir()
    head = "src_region,src_tier,dst_region,dst_tier"
    rtt = [f"{head},avg_rtt", "x:a,P,x:b,P,10.5", "x:a,S,x:b,P,11.5", "x:a,P,x:b,S,99", "x:b,P,x:c,P,7"]
    rate = [f"{head},throughput_received", "x:a,P,x:b,P,2e9", "x:b,P,x:a,P,3e9", "x:a,P,x:c,P,"]
    (folder / "network" / "skyplane_latency.csv").write_text("\n".join(rtt))
    packed = zstandard.ZstdCompressor().compress("\n".join(rate).encode())
    (folder / "network" / "skyplane_throughput.csv.zst").write_bytes(packed)
    return str(folder)


def test_regions_have_the_median_of_what_was_measured(tmp_path: Path) -> None:
    link = RegionLink(data_root=measured(tmp_path), regions=("x:a", "x:b"))
    assert link.rtt_between_us(0, 1) == 11_500
    assert link.rtt_between_us(1, 0) == 11_500  # the other direction stands for both
    assert (link.bits_per_s(0, 1), link.bits_per_s(1, 0)) == (2_000_000_000, 3_000_000_000)
    assert (link.rtt_between_us(0, 2), link.bits_per_s(0, 2)) == (LOCAL_RTT_US, LOCAL_BITS_PER_S)


@pytest.mark.parametrize(
    ("regions", "words"),
    [(("x:a", "x:d"), "`x:d`"), (("x:a", "x:c"), "no round trip"), (("x:b", "x:c"), "no rate"), ((), "empty")],
)
def test_a_region_without_measurements_is_named(tmp_path: Path, regions: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RegionLink(data_root=measured(tmp_path), regions=regions).places()


def test_a_cloud_has_its_own_regions() -> None:
    known = ["azure:northeurope", "aws:us-east-1", "aws:us-west-1", "gcp:us-east1"]
    assert did_you_mean("aws:nowhere", known) == "; choices: `aws:us-east-1`, `aws:us-west-1`"
    assert did_you_mean("aws:us-east1", known) == "; did you mean `aws:us-east-1`?"
    assert did_you_mean("asure:northeurope", known) == "; did you mean `azure:northeurope`?"


def test_without_a_folder_it_says_which_one_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="KVSHARE_DATA"):
        RegionLink(data_root=None, regions=("x:a",)).places()
    with pytest.raises(ConfigError, match="cannot read the links"):
        RegionLink(data_root=str(tmp_path), regions=("x:a",)).places()
