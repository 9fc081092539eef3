"""Mistral: dense decoder, its early versions with a sliding window (transformers' native class)."""
