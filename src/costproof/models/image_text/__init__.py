"""Models that read images and text: a vision tower, a projector, a decoder. Families put the three together."""
