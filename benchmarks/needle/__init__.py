"""The needle benchmark: generated videos, questions about local details, and a small video LLM that answers them."""
