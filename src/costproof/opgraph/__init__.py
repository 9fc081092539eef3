"""Represent graphs of operators, cost them by rules, and analyze them, without torch."""
