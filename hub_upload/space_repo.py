"""Make the files of a Space that serves the demo, in a folder. Nothing here talks to the Hub."""

import importlib
import json
import re
from collections.abc import Sequence
from importlib.metadata import requires, version
from pathlib import Path

from huggingface_hub import SpaceCardData

from ..errors import written_to
from ..records.whole_files import growing_folder
from ..repo_shape import CARD
from ..shipping.shipped_code import LICENSE, license_file
from .model_card import CITATION, SPACE_MARKER, space_card
from .publish_options import PublishOptions
from .staging import StagedRepo, files_in, write_code

APP, REQUIREMENTS, PACKAGE = "app.py", "requirements.txt", "vidcom2"
APP_TEMPLATE = '''"""The demo of VidCom². README.md says more."""

from vidcom2.demo.space import serve_space

serve_space({})
'''
ROOMS_ELSEWHERE = ("modeling", "configuration", "hub_upload")  # in a checkout, these lie outside the package


def stage_space(folder: Path, options: PublishOptions, packages: Sequence[str] = ()) -> StagedRepo:
    """Write the files of a Space into a folder: `app.py`, its requirements, the package, and the card.

    Args:
        packages: the optional packages that the Space's model needs.

    Raises:
        OptionError: if the folder exists, or cannot be written.
    """
    assert options.model is not None, "`PublishOptions.check` refuses a Space without a model"
    served = json.dumps(options.model)
    if options.revision is not None:
        served += f", revision={json.dumps(options.revision)}"
    # Not Gradio, which is an extra: `sdk_version` makes the Hub add it.
    needs = [need for need in requires(PACKAGE) or [] if not re.search(r"\bextra\s*==", need)]
    content = {
        APP: APP_TEMPLATE.format(served).encode(),
        REQUIREMENTS: "".join(f"{need}\n" for need in sorted([*needs, *packages])).encode(),
    }
    content |= {f"{PACKAGE}/{name}": path.read_bytes() for name, path in package_files().items()}
    content[f"{PACKAGE}/{LICENSE}"] = license_file().read_bytes()
    title = f"VidCom² on {options.model.split('/')[-1]}"
    data = SpaceCardData(
        title=title,
        sdk="gradio",
        sdk_version=version("gradio"),
        app_file=APP,
        license="apache-2.0",
        models=[options.model],
        tags=["vidcom2", "video", "token-compression"],
        suggested_hardware=options.hardware,
        colorFrom="blue",
        colorTo="green",
    )
    with written_to(folder), growing_folder(folder) as made:
        files = write_code(content, made)
        card = space_card(
            data,
            marker=SPACE_MARKER,
            title=title,
            model=options.model,
            revision=options.revision,
            command=options.command(),
            files=files,
            license_file=f"{PACKAGE}/{LICENSE}",
            citation=CITATION,
        )
        card.save(made / CARD)
        return StagedRepo(folder, files_in(made))


def package_files() -> dict[str, Path]:
    """Return the files of the package by their paths in it."""
    found = {}
    for room in ("", *ROOMS_ELSEWHERE):
        top = Path(str(importlib.import_module(f"{PACKAGE}.{room}".rstrip(".")).__file__)).parent
        for path in top.rglob("*"):  # does not follow links
            inner = Path(room) / path.relative_to(top)
            if path.is_file() and not path.name.startswith(".") and "__pycache__" not in inner.parts:
                found[inner.as_posix()] = path
    return dict(sorted(found.items()))
