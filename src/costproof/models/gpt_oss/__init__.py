"""GPT-OSS: experts with biases in every layer, every other layer with a window, a sink in every head (transformers)."""
