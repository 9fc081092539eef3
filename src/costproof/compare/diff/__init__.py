"""What a change does to the cost: rows matched, sums held against each other, and each key's exact part of it."""
