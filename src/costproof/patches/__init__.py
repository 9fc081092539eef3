"""Replacements in torch, transformers and TorchLens that last only while a model is exported or traced."""
