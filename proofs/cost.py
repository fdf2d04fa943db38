"""Selection and splitting."""
