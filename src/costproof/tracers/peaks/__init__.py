"""The peak of live activations: by an exported program, and by a module that runs on tensors without numbers."""
