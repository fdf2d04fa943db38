"""The note's table of systems, cell by cell; see README.md beside."""
