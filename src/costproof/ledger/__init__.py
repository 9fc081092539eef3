"""Define the types that all other packages share: metrics, workloads, cost nodes, ledgers, captures, errors.

All other packages build on this one; it imports no other part of costproof, and never torch.
"""
