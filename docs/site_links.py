"""Hooks of MkDocs: pages from outside `docs/`, and links that work on GitHub and on the site.

README, CONTRIBUTING and CHANGELOG lie at the top of the checkout, and become pages of the site. Links to them lead to
these pages. The site has no copy of the code, so that of a link into the code only the text stays.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\]\([^)]*\))+)\]\((?!https?://|#)([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the top of the checkout."""
    root = Path(config.config_file_path).parent
    for name, page in TOP.items():
        files.append(File.generated(config, page, content=(root / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make a page's links those of the site."""
    folder = "" if page.file.src_uri in TOP.values() else "docs"

    def moved(found: re.Match[str]) -> str:
        name, _, anchor = found[3].partition("#")
        target = posixpath.normpath(posixpath.join(folder, name))
        if target.startswith("docs/"):
            target = target.removeprefix("docs/")
        elif target in TOP:
            target = TOP[target]
        else:
            return found[2]
        return f"{found[1]}[{found[2]}]({target}{'#' * bool(anchor)}{anchor})"

    return LINK.sub(moved, markdown)
