"""Tests of the closed formulas."""
