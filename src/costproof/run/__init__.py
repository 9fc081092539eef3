"""The room that knows all sources: one run, from a request to a capture and what is checked with it."""
