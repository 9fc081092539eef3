"""Count the work of a neural network three ways and account for every difference."""
