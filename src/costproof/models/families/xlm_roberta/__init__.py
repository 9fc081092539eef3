"""XLM-RoBERTa: RoBERTa with words of a hundred languages (transformers' native class)."""
