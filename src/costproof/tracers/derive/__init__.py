"""Closed forms read off the graph of any model that exports."""
