"""Shipped code: the model classes, and how a video is compressed."""
