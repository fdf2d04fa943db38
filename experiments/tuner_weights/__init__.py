"""Tuned weights against published ones and against (1+1)-ES, on windows that no search has seen; see README.md."""
