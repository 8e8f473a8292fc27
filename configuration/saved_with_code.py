"""A saved config, and with it a saved model, goes along with the code that loads it."""

from collections.abc import Callable
from typing import Any, ClassVar


class SavedWithCode:
    """Comes before the parent class in a config's bases.

    A class that came from a Hub repo needs nothing from here: Transformers knows its files and saves them. For a class
    of the installed package it does not, and the folder would load as the stock model, uncompressed, without a word.

    Attributes:
        write_code: called as `write_code(config, folder)` before the config is saved. The `vidcom2` package sets it; it
            copies the code into the folder and names the classes in the config's `auto_map`.
    """

    write_code: ClassVar[Callable[[Any, str], None] | None] = None

    def save_pretrained(self, save_directory: str, *args: Any, **kwargs: Any) -> None:
        """As the parent's; the model's `save_pretrained` and `push_to_hub` come through here."""
        if SavedWithCode.write_code is not None:
            SavedWithCode.write_code(self, save_directory)
        super().save_pretrained(save_directory, *args, **kwargs)
