"""The closed formulas of XLM-RoBERTa: those of RoBERTa, also by the names of its modules."""

from costproof.models.families.roberta.formulas import formulas

__all__ = ["formulas"]
