"""Fixtures, builders and processes that several tests share."""
