"""Base classes, formulas and proof domains of models of images and text: a vision tower, a projector, a decoder."""
