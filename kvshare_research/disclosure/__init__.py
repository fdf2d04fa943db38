"""Which tenant-scoped prefixes become shared."""
