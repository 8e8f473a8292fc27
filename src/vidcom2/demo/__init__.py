"""A page in the browser that answers with all tokens and with few, side by side: `vidcom2 demo`, and a Hub Space."""
