"""Shipped code: the configs with the compression settings. It imports nothing from `modeling/`."""
