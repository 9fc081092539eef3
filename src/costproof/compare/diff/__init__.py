"""Compare the costs of two sides row by row, and attribute each difference exactly to the keys that changed."""
