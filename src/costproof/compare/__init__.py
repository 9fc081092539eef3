"""Compare: line up the sources of a capture, name the causes of differences, judge.

Works on captures alone: no torch, no model, no network.
"""
