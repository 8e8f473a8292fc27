"""From features to an answer: the prompt without the dropped tokens, and its KV cache."""
