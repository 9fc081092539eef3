"""The shared words as types: symbols, quantities, cost nodes, ledgers, captures, errors.

Everything else builds on this package; it imports no other part of costproof, and never torch.
"""
