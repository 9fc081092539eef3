"""Proofs that formulas and graphs agree, and over which domain this was shown."""
