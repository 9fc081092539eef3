"""LLaVA: a Llama that sees images through CLIP and an MLP (transformers' native class)."""
