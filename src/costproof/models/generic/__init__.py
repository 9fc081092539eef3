"""Targets without closed formulas: any PyTorch module, and any configuration of transformers."""
