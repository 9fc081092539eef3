"""Configurations of models, read so that no key is ignored, and limits on what they may build."""
