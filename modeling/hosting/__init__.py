"""Where this project's classes meet those of Transformers."""
