"""Formats of quantised weights: their tensors, the configuration keys that select them, and the headers of files."""
