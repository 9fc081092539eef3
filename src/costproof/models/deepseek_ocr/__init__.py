"""DeepSeek-OCR: SAM ViT-B, CLIP-L, a linear projector and a mixture-of-experts decoder."""
