"""Compare the costs of two sides row by row, and attribute every difference exactly to the changed keys."""
