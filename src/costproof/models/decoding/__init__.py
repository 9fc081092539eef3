"""Base classes of decoder-only models: configuration, formulas, building, export, runs and proof domain."""
