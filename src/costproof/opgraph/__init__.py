"""Represent graphs of operators, count their costs by rules, and analyze them, without torch."""
