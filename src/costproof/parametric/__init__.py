"""Evaluate closed formulas as functions of settings, exactly, at many points, in the branch of each point."""
