"""Sweeps: the analytic numbers of a target at many points, exact, at the speed of NumPy."""
