"""Closed formulas as functions of settings, evaluated exactly at many points, in the branch of each point."""
