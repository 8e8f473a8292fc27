"""Tiny random checkpoints of each family in the real format, for the demo, the tests and the README.

They need no download, and their answers mean nothing.
"""
