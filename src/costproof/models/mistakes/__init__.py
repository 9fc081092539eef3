"""Known mistakes in published numbers of single families, as effects on terms that ``costproof check`` tries."""
