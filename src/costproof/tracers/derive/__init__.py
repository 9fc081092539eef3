"""Derive closed forms from the graph of any model that can be exported."""
