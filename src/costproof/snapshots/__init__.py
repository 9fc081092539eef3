"""Copies and snapshots of modules and of the state of a process, so that a count leaves no trace."""
