"""The needle benchmark: generated videos, local questions, and a small video LLM that answers them."""
