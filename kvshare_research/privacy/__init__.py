"""Privacy: the epsilon ledger, the desk that applies a disclosure policy, audits and training."""
