"""Peaks of live activations, of exported programs and of modules that run on fake tensors."""
