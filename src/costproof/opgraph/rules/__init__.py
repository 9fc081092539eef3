"""Count the cost of single operator calls from the shapes of their tensors.

Rules never use the formulas of :mod:`costproof.analytic`; they are tested against torch's FlopCounterMode and
brute-force counting. An operator has a cost rule or is reported as unknown; operators without work have a rule that
says 0.
"""
