"""Compare: line up the sources of a capture, name the causes of differences, judge.

Works on captures alone: no torch, no model, no network.
"""

from costproof.compare.compare import compare
from costproof.compare.findings import CAUSES, DISCREPANCY, Cause, Coverage, Discrepancy, Finding
from costproof.compare.verdict import exit_code, verdict_sentence

__all__ = [
    "CAUSES",
    "DISCREPANCY",
    "Cause",
    "Coverage",
    "Discrepancy",
    "Finding",
    "compare",
    "exit_code",
    "verdict_sentence",
]
