"""Which block goes first when something must go."""
