"""Small models: random ones of each family, and the bundled toy model."""
