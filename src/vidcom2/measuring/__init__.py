"""Measuring how long answers take and how much memory they need."""
