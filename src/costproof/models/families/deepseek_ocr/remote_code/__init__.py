"""DeepSeek-OCR on the vendor's own remote code, as it lies in a snapshot folder."""
