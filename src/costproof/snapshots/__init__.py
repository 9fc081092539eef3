"""Copies, descriptions and snapshots of modules and of process state, which undo the changes of a count."""
