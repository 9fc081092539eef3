"""Compute peaks of live activation memory, for exported programs and for eager modules on fake tensors."""
