"""DeepSeek-V3: latent attention, grouped experts behind dense layers, shared experts (transformers' native class)."""
