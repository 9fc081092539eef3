"""Graphs of the model, exported and traced, and what their operators cost."""
