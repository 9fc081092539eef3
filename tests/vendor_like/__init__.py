"""A small remote-code package of our own with the traits of DeepSeek-OCR's, for tests without the vendor's files."""
