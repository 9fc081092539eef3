"""Proofs: that formulas and graphs agree everywhere, and over which domain that was shown how."""
