"""Convert counted work and memory into bounds (never predictions) on a device. Nothing here needs torch."""
