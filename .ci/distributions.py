"""Check what the wheel and the source distribution in a folder hold: `python .ci/distributions.py FOLDER`."""

import re
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("modeling", "configuration", "hub_upload")  # at the top of a checkout, where the package has links to them
RELATIVE_LINK = re.compile(r"\]\((?!https?://|#)([^)]+)\)")

folder = Path(sys.argv[1])
with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel, tarfile.open(next(folder.glob("*.tar.gz"))) as source:
    names, of_source = wheel.namelist(), {name.partition("/")[2] for name in source.getnames()}
    (metadata,) = (message_from_bytes(wheel.read(name)) for name in names if name.endswith(".dist-info/METADATA"))

# Everything in the four folders is installed, once, and nothing else.
needed = {
    f"vidcom2/{path.relative_to(ROOT).as_posix().removeprefix('src/vidcom2/')}"
    for top in ("src/vidcom2", *ROOMS)
    for path in (ROOT / top).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}
missing = needed - set(names)
assert not missing and len(names) == len(set(names)), missing
assert {name.split("/")[0].split("-")[0] for name in names} == {"vidcom2"}, names

pages = {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "SKILL.md", "pyproject.toml"}
assert pages | {"modeling/methods/compression.py", "tests/conftest.py"} <= of_source

# README's links into the repository lead nowhere on a package index.
shown = metadata.get_payload(decode=True).decode()  # type: ignore[union-attr]
readme = (ROOT / "README.md").read_text(encoding="utf-8")
assert RELATIVE_LINK.search(readme) and not RELATIVE_LINK.findall(shown)
assert all(link in shown for link in re.findall(r"\]\(https?://[^)]+\)", readme))
core = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
assert any(need.startswith("matplotlib") for need in core) and "explain" in metadata.get_all("Provides-Extra", [])
print(f"{len(names)} files in the wheel, {len(of_source)} in the source distribution")
