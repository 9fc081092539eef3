"""Reports: one renderer per output. Each has a data half (pure) and a writing half (text)."""
