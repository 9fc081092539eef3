"""RoBERTa: BERT whose positions begin behind the padding id, worked out for every text (transformers' native class)."""
