"""Which tokens stay: the methods, on tensors alone."""
