"""What models that read page images share: page geometry, workloads, SAM, the decoder, exports and runs."""
