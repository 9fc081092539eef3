"""Mistakes that are common in published numbers of single families, as effects that `costproof check` looks for."""
