"""Evaluate closed formulas as functions of settings: at many points, exactly, with the branches that hold there."""
