"""Compression methods of users that a Hub repo brings along.

In the package there are none. With a model that uses one, `save_pretrained` writes this file anew, with an import of
the method's file, so that it is registered when the repo's config is loaded.
"""

METHODS = ()
