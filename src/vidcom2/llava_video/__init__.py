"""LLaVA-Video, which Transformers does not have: its classes, and the converter for the original checkpoints."""
