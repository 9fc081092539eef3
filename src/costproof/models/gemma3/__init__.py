"""Gemma 3, text: norms on both sides, five layers with a window to one without (transformers' native class)."""
