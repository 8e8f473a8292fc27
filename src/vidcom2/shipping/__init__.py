"""What a Hub repo holds beside the weights, and how it is made of `modeling/` and `configuration/`."""
