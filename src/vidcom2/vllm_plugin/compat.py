"""The versions of vLLM that the plugin supports. It builds on classes that vLLM changes, so others are refused."""

# Each supported minor version, and how it was checked. docs/serving.md has the same table, with what each asks for.
# No code of the plugin depends on the version so far. Where one needs other code, the question belongs into this file.
SUPPORTED = {
    "0.32": "the tests of the plugin run on it, on a CPU",
    "0.33": "its sources have all that the plugin uses, with the same code around it; it has no build for a CPU",
}
WINDOW = "vllm>=0.32,<0.34"  # the extra `vllm` in pyproject.toml


def why_not(version: str) -> str | None:
    """Return what to say of a version of vLLM that the plugin does not support, and None for one that it does."""
    if ".".join(version.split(".")[:2]) in SUPPORTED:
        return None
    return (
        f"vLLM's version is {version}, but vidcom2 serves its repos only in vLLM {' and '.join(SUPPORTED)}, because it "
        f'builds on classes that other versions lack or change. Run `pip install "{WINDOW}"`, best in an environment '
        "of its own, or serve the repo with `transformers serve`."
    )
