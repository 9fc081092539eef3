"""Compare the sources of a capture: align their quantities, name the causes of differences, and return a verdict.

It needs only captures: no torch, no model, no network.
"""
