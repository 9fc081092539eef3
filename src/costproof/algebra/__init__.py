"""Symbols, exact evaluation, piecewise formulas and conditions: where a formula holds."""
