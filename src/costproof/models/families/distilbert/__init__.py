"""DistilBERT: BERT with half the layers, without segments and without a pooler (transformers' native class)."""
