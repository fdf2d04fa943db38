"""How messages and blocks travel: wire formats, the MPI endpoint and emulated links."""
