"""One published finding; see README.md beside."""
