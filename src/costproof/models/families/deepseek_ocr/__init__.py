"""DeepSeek-OCR: SAM ViT-B, CLIP-L, linear projector, DeepSeek MoE decoder (transformers' native classes)."""
