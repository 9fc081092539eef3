"""Independent counts, planted mistakes and hostile inputs that tests and benchmarks compare costproof with."""
