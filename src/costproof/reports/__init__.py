"""Define reports as documents on one subject each, and the printers that format them."""
