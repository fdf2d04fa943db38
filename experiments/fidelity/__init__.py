"""The simulator against ranks; see README.md."""
