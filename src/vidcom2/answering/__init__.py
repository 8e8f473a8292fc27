"""Prompts, videos and questions in; answers out."""
