"""Qwen3: dense decoder whose queries and keys are normalised (transformers' native class)."""
