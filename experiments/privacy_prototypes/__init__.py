"""The first prototypes, run again by the shipped code; see README.md beside."""
