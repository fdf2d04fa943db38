"""Attacks as experiments: a tenant who means harm probes shipped routers and workers for another tenant's secret."""
