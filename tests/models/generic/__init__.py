"""Models that nobody wrote formulas for."""
