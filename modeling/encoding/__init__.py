"""From pixels to the features of the tokens that stay."""
