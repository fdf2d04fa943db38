"""Benchmarks beside peers: each prints a table and writes JSON and a plot. See README.md in this folder."""
