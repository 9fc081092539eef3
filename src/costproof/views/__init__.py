"""Views of a capture: everything that is computed from one and not yet formatted."""
