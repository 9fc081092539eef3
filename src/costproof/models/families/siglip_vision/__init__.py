"""SigLIP's vision tower: encoder of image patches, pooled by attention, no class token (transformers' native class)."""
