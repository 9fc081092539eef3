"""Define targets, the models that can be counted, with their configurations, workloads and checkpoints.

Nothing here imports torch or transformers before a model is built.
"""
