"""Convert counted work and memory into bounds on a device, not predictions, without torch."""
