"""Numbers from formulas: the shared evaluator of symbolic ledgers, under the name that formulas use."""

from __future__ import annotations

from costproof.ledger.evaluate import evaluate_ledger as evaluate

__all__ = ["evaluate"]
