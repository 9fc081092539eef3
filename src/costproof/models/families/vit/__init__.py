"""ViT: encoder of image patches with a class token, its classifier or its pooler (transformers' native class)."""
