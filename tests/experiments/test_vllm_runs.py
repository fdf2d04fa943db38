"""The engine model, with the figures that its page gives, against the measured run itself."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from experiments.vllm_runs import compare


@pytest.mark.skipif("KVSHARE_DATA" not in os.environ, reason="reads the measured vLLM runs below KVSHARE_DATA")
def test_the_engine_foretells_the_second_half_of_a_measured_run() -> None:
    base, measured = compare.configured("RTX4090"), compare.read(Path(os.environ["KVSHARE_DATA"]), "RTX4090")
    values = np.array([3.97e9, 130e6, 17.6e9, 40.7e6, 41.4e3])
    found = compare.simulated(base, compare.requests(measured), values)[150:, 0]
    for share in (0.5, 0.95):
        assert abs(np.quantile(found, share) / np.quantile(measured.ttft_us[150:], share) - 1) < 0.1
