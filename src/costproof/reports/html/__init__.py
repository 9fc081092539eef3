"""Reports as one HTML file: no network, a closed content policy, the same bytes every time."""
