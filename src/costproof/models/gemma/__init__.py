"""Gemma, the first: dense decoder with wide heads, embeddings scaled and tied (transformers' native class)."""
