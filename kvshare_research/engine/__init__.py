"""Models that compute: prefill and greedy decode over a block pool whose blocks can come from elsewhere."""
