"""One finding of this project's own; see README.md beside."""
