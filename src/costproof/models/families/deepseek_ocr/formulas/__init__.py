"""The closed formulas of DeepSeek-OCR, composed of model-neutral layers."""
