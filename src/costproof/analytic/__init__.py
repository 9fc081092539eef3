"""Define closed formulas for the cost of layers, stages and models, symbolic in workload and configuration.

Each layer derives its formula in its docstring. No formula reads a graph.
"""
