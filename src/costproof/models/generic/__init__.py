"""Any module of PyTorch, any configuration of transformers: one forward, exported with its sizes as symbols."""
