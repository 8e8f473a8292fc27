"""From features to an answer: this room makes the prompt without the dropped tokens, and its KV cache."""
