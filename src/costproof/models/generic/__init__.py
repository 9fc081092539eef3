"""Targets without formulas: any PyTorch module and any configuration of transformers."""
