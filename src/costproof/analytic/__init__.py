"""Closed formulas for the cost of layers, stages and models, symbolic in workload and configuration.

One layer a file; each derives its formula in its docstring. Nothing here ever reads a graph.
"""
