"""Which waiting request runs next."""
