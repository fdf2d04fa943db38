"""The cost model's shape on measured engines; see README.md."""
