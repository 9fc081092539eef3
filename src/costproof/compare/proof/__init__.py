"""Prove that formulas and graphs agree, and state the domain over which this was shown."""
