"""Base classes, formulas and proof domains of image-text models: a vision tower, a projector and a decoder."""
