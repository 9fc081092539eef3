"""Copies, descriptions and snapshots of modules and of process state, which undo what a count changes."""
