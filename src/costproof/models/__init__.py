"""Targets: models that can be counted, their configurations, workloads and checkpoints.

Nothing here imports torch or transformers before a model is built.
"""
