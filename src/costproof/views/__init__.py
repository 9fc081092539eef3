"""Compute everything that reports show from a capture, before it is formatted."""
