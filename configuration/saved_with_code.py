"""How configs, models and processors are saved with the code that loads them.

No file of others is overwritten.
"""

import inspect
from collections.abc import Callable
from os import PathLike
from os.path import basename, isfile, join
from typing import TYPE_CHECKING, Any, ClassVar

# A mixin's `super()` is the class of Transformers that follows it in a family's class. Type checkers cannot know that,
# and are told what mixins use of it.
if TYPE_CHECKING:
    from transformers.utils.hub import PushToHubMixin

    class ParentSaved(PushToHubMixin):
        """What configs, models and processors have in common."""

        _auto_class: ClassVar[str | None]

        @classmethod
        def register_for_auto_class(cls, *args: Any, **kwargs: Any) -> None: ...

else:
    ParentSaved = object


class SavedWithCode(ParentSaved):
    """Saves an object together with its code. It comes before the parent class of a config, a model or a processor.

    If a class came from a Hub repo, Transformers knows its code files and copies them. For a class of the installed
    package it does not, and the saved folder would silently load as the stock model, which does not compress.

    Attributes:
        write_code: called as `write_code(object, folder)` before the object is saved. The `vidcom2` package sets it. It
            copies the code into the folder, and notes the classes and the files' sha256 in the config.
        check_repo: called as `check_repo(object, repo, token, revision)` before the object is sent to the Hub. The
            `vidcom2` package sets it.
    """

    write_code: ClassVar[Callable[[Any, str | PathLike[str]], None] | None] = None
    check_repo: ClassVar[Callable[[Any, str, Any, str | None], None] | None] = None

    @classmethod
    def register_for_auto_class(cls, *args: Any, **kwargs: Any) -> None:
        """Register the class as the parent does, unless it is the package's own, whose code is saved anyway."""
        if SavedWithCode.write_code is None or cls.__module__.partition(".")[0] != __name__.partition(".")[0]:
            super().register_for_auto_class(*args, **kwargs)

    def save_pretrained(self, save_directory: str | PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save the object and its code, with the parent's arguments.

        Raises:
            ValueError: if the folder holds a file that this project did not write and that has the name of a code
                file. Nothing is written then.
        """
        if SavedWithCode.write_code is not None:
            if kwargs.get("push_to_hub") and SavedWithCode.check_repo is not None:
                repo = kwargs.get("repo_id") or basename(save_directory)
                SavedWithCode.check_repo(self, repo, kwargs.get("token"), None)
            SavedWithCode.write_code(self, save_directory)
        elif self._auto_class is not None:
            check_before_copy(type(self), save_directory)
        super().save_pretrained(save_directory, *args, **kwargs)

    def _get_files_timestamps(self, working_dir: str | PathLike[str]) -> dict[str, float]:
        """Return the files that `push_to_hub=True` sends only if they change, without the code written a moment ago."""
        code = getattr(self, "vidcom2_code_sha256", {})
        stamps = super()._get_files_timestamps(working_dir)
        return {name: stamp for name, stamp in stamps.items() if name not in code}

    def push_to_hub(self, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        """Push the object and its code to the Hub, with the parent's arguments.

        Raises:
            ValueError: if the repo holds a file that this project did not write and that has the name of a code file.
                Nothing is sent then.
        """
        if SavedWithCode.check_repo is not None:
            SavedWithCode.check_repo(self, repo_id, kwargs.get("token"), kwargs.get("revision"))
        return super().push_to_hub(repo_id, *args, **kwargs)


def check_before_copy(saved_class: type, folder: str | PathLike[str]) -> None:
    """Check that Transformers will not write the code of a class over files of others.

    The check goes by file names alone, since code in a Hub repo opens no files. A folder that holds a file named after
    this project counts as one that was saved before.

    Raises:
        ValueError: if the folder holds files with names of code files, and none of these is named after this project.
    """
    from transformers.dynamic_module_utils import get_relative_import_files  # Imported late because it is slow.

    own = inspect.getfile(saved_class)
    names = sorted({basename(file) for file in (own, *get_relative_import_files(own))})
    taken = [name for name in names if isfile(join(folder, name))]
    if not any("vidcom2" in name for name in taken):
        refuse_taken(taken, f"the folder {str(folder)!r}")


def refuse_taken(taken: list[str], where: str) -> None:
    """Raise a ValueError if files of others have names of code files; `where` says where, and starts the message."""
    if taken:
        raise ValueError(
            f"{where} holds {', '.join(map(repr, taken))}, which this project did not write, but the code saved with "
            "the model has files of the same name. Nothing was written. Move or rename them, or save to another place."
        )
