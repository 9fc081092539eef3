"""Views of a capture: everything that is computed from one, before it is formatted."""
