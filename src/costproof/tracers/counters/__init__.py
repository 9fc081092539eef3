"""Adapters to third-party FLOP counters: one function per tool, each run in a separate process.

An adapter calls the tool as its documentation describes and returns the tool's own figures at their finest level. It
never corrects a number; :mod:`costproof.compare.counters` explains differences.
"""
