"""What counted work and memory come to on a device: bounds, never predictions. Nothing here needs torch."""
