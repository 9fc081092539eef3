"""Describe the stored weights of a checkpoint, load weights into a model, or generate random ones."""
