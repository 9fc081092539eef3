"""Mixtral: decoder with a mixture of experts in every layer (transformers' native class)."""
