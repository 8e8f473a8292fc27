"""Answering questions about videos."""
