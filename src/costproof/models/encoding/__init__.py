"""What every one-stage encoder of transformers shares: built on meta, exported, run on shapes and with numbers."""
