"""Share KV caches between tenants and nodes: one decision core for real MPI ranks, a simulator and Z3."""

__version__ = "0.1.0"
