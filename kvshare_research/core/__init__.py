"""The pure core: nouns, rules and the two state machines. No clock, no randomness, no I/O."""
