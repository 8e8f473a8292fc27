"""Building, publishing and verifying Hub repos: tooling, never shipped to them."""
