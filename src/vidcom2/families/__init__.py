"""The families: a table of rows, and the modules that are written from them."""
