"""The files that a Hub repo holds beside the weights, and how they are made from `modeling/` and `configuration/`."""
