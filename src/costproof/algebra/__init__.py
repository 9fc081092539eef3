"""Symbols, exact evaluation, piecewise formulas, and conditions under which formulas hold."""
