"""The global prefix index: who holds which block of which prompt. The specification is `reference.py`."""
