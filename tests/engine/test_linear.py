"""The faster product is the same product."""

import pytest
import torch

from kvshare_research.engine.linear import OneDnnLinear, has_onednn, use_onednn


@pytest.mark.skipif(
    not has_onednn(), reason="this CPU has no AVX-512, or torch no oneDNN product: the plain layer stays"
)
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 32, 129])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [7, 48, 8192])
def test_equal_up_to_rounding(rows: int, bias: bool, outputs: int) -> None:
    torch.manual_seed(rows)
    layer = torch.nn.Linear(33, outputs, bias=bias)
    rows_given = torch.randn(1, rows, 33)
    with torch.inference_mode():
        expected = layer(rows_given)
        assert use_onednn(layer) == 1
        assert type(layer) is OneDnnLinear
        given = layer(rows_given)
    assert given.shape == expected.shape
    assert torch.allclose(given, expected, atol=1e-5)


def test_other_layers_are_left_alone() -> None:
    half = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
    norm = torch.nn.LayerNorm(4)
    assert use_onednn(torch.nn.Sequential(half, norm)) == 0
    assert type(half) is torch.nn.Linear
