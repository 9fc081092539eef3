"""DeepSeek-OCR 2: SAM, an encoder that reads its features through queries, and a DeepSeek decoder (native class)."""
