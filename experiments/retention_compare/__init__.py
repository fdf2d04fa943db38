"""Every retention policy beside the oracle; see README.md beside."""
