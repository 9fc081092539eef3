"""Adapters to third-party counters: one function per tool, each run in a process of its own.

An adapter calls the tool as its documentation describes and returns the tool's own figures at their finest level. It
never corrects a number; :mod:`costproof.compare.counters` explains differences.
"""
