"""The families of models, each by what differs from its parent classes."""
