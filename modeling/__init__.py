"""Shipped code: the model classes, and the compression of videos."""
