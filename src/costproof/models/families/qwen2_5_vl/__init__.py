"""Qwen2.5-VL: a Qwen2.5 that sees images of any size, by attention in windows (transformers' native class)."""
