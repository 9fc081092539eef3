"""Check published numbers and formulas against a ledger, and attribute each difference to named causes."""

from __future__ import annotations

from costproof.claims.judge import judge_claims
from costproof.claims.reading import claims_from_text, read_claims
from costproof.claims.types import CLAIMS, ClaimsFile, ClaimsReport, Judgement

__all__ = ["CLAIMS", "ClaimsFile", "ClaimsReport", "Judgement", "claims_from_text", "judge_claims", "read_claims"]
