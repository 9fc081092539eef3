"""Read configurations of models without ignoring any key, and limit what they may build."""
