"""What a run compares: cases expanded from a study, played one after another on one set of ranks."""
