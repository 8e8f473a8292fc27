"""Families that no row names: which row the conventions of Transformers' classes give them, and whether it is right."""
