"""Registers the users' methods that a Hub repo brings along.

The package itself has none. When a model uses one, `save_pretrained` writes another version of this file, which imports
the method's file, so that the method is registered when the repo's config is loaded.
"""

METHODS = ()
