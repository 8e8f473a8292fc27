"""Small models: random ones of each family, and the toy that comes along."""
