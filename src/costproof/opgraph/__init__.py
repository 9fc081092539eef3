"""The common graph of operators, their cost rules, and what is computed on it; free of torch."""
