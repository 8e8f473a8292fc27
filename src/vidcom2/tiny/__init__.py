"""Small random models of each family."""
