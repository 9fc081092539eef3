"""Common code of models that read images of pages: geometry, workloads, SAM, decoder, exports and runs."""
