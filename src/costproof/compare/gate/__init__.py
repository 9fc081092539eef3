"""A gate: whether a change may pass, by a policy."""
