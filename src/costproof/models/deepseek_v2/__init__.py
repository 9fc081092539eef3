"""DeepSeek-V2: latent attention, experts behind dense layers, shared experts (transformers' native class)."""
