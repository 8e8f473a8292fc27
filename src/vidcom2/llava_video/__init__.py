"""LLaVA-Video, which Transformers does not have: its classes, and the converter of the original checkpoints."""
