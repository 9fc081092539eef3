"""GPT-2: layer norms, one projection for queries, keys and values, learned positions (transformers' native class)."""
