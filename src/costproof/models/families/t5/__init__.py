"""T5: encoder and decoder with biases by distance, one table of words for all (transformers' native class)."""
