"""Qwen2 and Qwen2.5: dense decoder with biases of queries, keys and values (transformers' native class)."""
