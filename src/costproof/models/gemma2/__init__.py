"""Gemma 2: norms on both sides, soft caps, every other layer with a window (transformers' native class)."""
