"""Other people's numbers and formulas, held against the truth and taken apart into named causes."""

from __future__ import annotations

from costproof.claims.judge import judge_claims
from costproof.claims.reading import claims_from_text, read_claims
from costproof.claims.types import CLAIMS, Claim, ClaimsFile, ClaimsReport, Judgement

__all__ = [
    "CLAIMS",
    "Claim",
    "ClaimsFile",
    "ClaimsReport",
    "Judgement",
    "claims_from_text",
    "judge_claims",
    "read_claims",
]
