"""Stands for this project's models in a version of vLLM that the plugin does not support. Importing it says so.

vLLM imports a model's module once it is asked to serve the model. So in such a version a repo of ours is refused,
rather than run by a stock class without compression, and all other models are served as without the plugin.
"""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import vllm

from .compat import why_not

raise ImportError(why_not(vllm.__version__))
