"""Shipped code: the configs with the compression settings. Imports nothing from `modeling/`."""
