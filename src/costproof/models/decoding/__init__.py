"""What every decoder of transformers shares: built on meta, cut for export, run on shapes and with numbers."""
