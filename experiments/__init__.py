"""Published findings, run again: each folder holds the claim, the command and what came out."""
