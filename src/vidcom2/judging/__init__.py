"""Questions whose right answers are known: options, letters, and how an answer is read."""
