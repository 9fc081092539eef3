"""Represent operator graphs, compute the costs of their operators by rules, and analyse the graphs, without torch."""
