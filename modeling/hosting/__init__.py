"""This room is where the project's classes meet those of Transformers."""
