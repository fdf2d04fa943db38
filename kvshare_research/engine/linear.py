"""Faster fp32 matrix products on CPUs with AVX-512: oneDNN's instead of MKL's, which keeps to AVX2 on AMD.

Measured on a Zen 5 core, 576 x 1536 weights: 226 against 105 GFLOP/s for 128 rows, 38 against 39 for one row.
"""

from __future__ import annotations

import torch

ROWS_MIN = 4  # below, a product is a walk over the weights and the plain call is as fast
WIDE_OUTPUTS = 8192  # the vocabulary: oneDNN walks large weights faster, 14 against 8 GFLOP/s for one row


class OneDnnLinear(torch.nn.Linear):
    """As `torch.nn.Linear`, for inference in fp32 on the CPU; equal up to rounding."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.numel() < ROWS_MIN * self.in_features and self.out_features < WIDE_OUTPUTS:
            return super().forward(input)
        # oneDNN falls to reference code, hundreds of times slower, on operands that are not contiguous.
        rows = input.contiguous()
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")
        return product


def has_onednn() -> bool:
    """Whether this torch and this CPU gain from it; the same on every machine of one kind, so ranks agree."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def use_onednn(network: torch.nn.Module) -> int:
    """The plain fp32 linear layers on the CPU now compute with oneDNN; weights are untouched. Returns how many."""
    if not has_onednn():
        return 0
    changed = 0
    for module in network.modules():
        if type(module) is not torch.nn.Linear:
            continue
        weight = module.weight
        if weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.is_contiguous():
            module.__class__ = OneDnnLinear
            changed += 1
    return changed
