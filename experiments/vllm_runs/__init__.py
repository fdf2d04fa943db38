"""The simulator's engine against measured vLLM runs; see README.md."""
