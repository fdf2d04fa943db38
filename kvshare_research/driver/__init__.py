"""Drivers perform effects: `mpi` over real ranks, `replay` from a recorded log in a fresh process."""
