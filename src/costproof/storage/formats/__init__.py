"""Describe formats of stored weights, one file each: the tensors of a linear layer [rows, columns]."""
