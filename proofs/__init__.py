"""Proofs of the rules that ship: `python -m proofs`. Read `README.md`, then `spec.py`: disagree with that."""
