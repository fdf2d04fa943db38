"""One study of our own; see README.md beside."""
