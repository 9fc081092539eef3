"""Temporary replacements in torch, transformers and TorchLens, in force while a model is exported or traced."""
