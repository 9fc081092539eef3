"""Weights of models: how checkpoints store them, loading them into a model, and random values instead."""
