"""The closed formulas of DeepSeek-OCR 2."""
