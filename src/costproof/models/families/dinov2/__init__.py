"""DINOv2: encoder of image patches whose layers scale what they add (transformers' native class)."""
