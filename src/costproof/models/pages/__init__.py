"""Common code of models that read page images: page geometry, workloads, SAM, the decoder, exports and runs."""
