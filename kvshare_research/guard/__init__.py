"""Who shares with whom: namespaces, keys, tenancies and quotas. The rules themselves are in `core/rights.py` and `core/account.py`."""
