"""Llama: dense decoder with grouped queries (transformers' native class)."""
