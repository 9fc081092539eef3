"""Qwen3-MoE: a Qwen3 with mixtures of experts, in every layer or in some (transformers' native class)."""
