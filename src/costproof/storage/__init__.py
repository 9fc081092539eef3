"""Describe how checkpoints store weights: tensors of each format, keys that select a format, and headers of files."""
