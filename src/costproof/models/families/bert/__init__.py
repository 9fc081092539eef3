"""BERT: encoder of text, norms behind the additions; masked words, classes or a pooler (transformers' native class)."""
