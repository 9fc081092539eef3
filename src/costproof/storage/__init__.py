"""Formats of stored weights: the tensors of each format, keys that select a format, and headers of files."""
