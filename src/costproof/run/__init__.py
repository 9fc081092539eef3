"""Carry out requests with all sources: from a request to a capture, a proof, a diff or an estimate."""
