"""Which methods are here: each is a file `method_<name>.py` or `vision_<name>.py`, whose import enters its row into the
table (`compression_settings.py`). A Hub repo's version of this file imports the methods that its config names.
"""

from functools import partial
from importlib import import_module
from pathlib import Path

from ..configuration.compression_settings import TABLES as METHODS

for setting, prefix in (("compression_method", "method_"), ("vision_method", "vision_")):
    files = Path(__file__).parent.glob(f"*/{prefix}*.py")
    for file in sorted(files, key=lambda file: (file.stem != "method_vidcom2", file.stem)):  # the paper's own first
        module = f"{__package__}.{file.parent.name}.{file.stem}"
        METHODS[setting].files[file.stem.removeprefix(prefix)] = partial(import_module, module)
