"""Share the code of models that read page images: geometry, workloads, SAM, decoder, exports and runs."""
