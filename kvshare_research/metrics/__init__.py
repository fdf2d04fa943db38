"""What the runs produced, and the numbers made from it: records -> statistics -> summary -> verdicts."""
