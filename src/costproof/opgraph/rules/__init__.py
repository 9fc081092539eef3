"""Operator rules: what one call of one operator costs, from its shapes alone.

Rules never read a formula of ``analytic``; they are tested against torch's own FlopCounterMode and
against brute-force counting. An operator has a cost rule, is declared free, or is unknown, and unknown is reported.
"""
