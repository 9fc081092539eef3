"""Qwen3-VL's vision tower: encoder of image patches with mergers behind some layers (transformers' native class)."""
