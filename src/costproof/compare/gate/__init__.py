"""Judge by a policy whether a change may be merged."""
