"""CLIP's vision tower: encoder of image patches with a class token, with or without its projection (transformers)."""
