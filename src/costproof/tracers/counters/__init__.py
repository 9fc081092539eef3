"""Adapters to the counters that people use: a function a tool, each run in a process of its own.

An adapter calls the tool as its documentation says and gives the tool's own figures, at the finest
level that it has. It never corrects a number; why numbers differ is said by
:mod:`costproof.compare.counters`.
"""
