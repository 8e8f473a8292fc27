"""Stands for the families that the plugin does not serve. Importing it says so, once vLLM is asked to serve one."""

raise ImportError(
    "vidcom2 does not serve this family in vLLM, because its plugin has no class for it. Serve the repo with "
    "`transformers serve`, or the stock checkpoint without compression."
)
