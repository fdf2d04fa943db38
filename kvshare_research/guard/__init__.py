"""Who shares with whom: namespaces, keys, tenancies, quotas. The rules: `core/rights.py`, `core/account.py`."""
