"""Describe how checkpoints store weights: tensors of each format, what selects a format, and headers of files."""
