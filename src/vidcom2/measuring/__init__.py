"""How long answers take, and what they take of memory."""
