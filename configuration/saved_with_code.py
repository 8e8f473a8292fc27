"""How configs, models and processors are saved with the code that loads them.

A file that this project did not write is never overwritten.
"""

import inspect
from collections.abc import Callable, Collection
from os import PathLike
from os.path import basename, isfile, join
from typing import TYPE_CHECKING, Any, ClassVar

# At run time, a mixin's `super()` is the class of Transformers that follows it in a family's class. Type checkers
# cannot know that, and are told what mixins use of it.
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
    package it does not, and the saved folder would silently load as the stock model, which does not compress. Nor can
    it be told to: it follows only imports from the same folder, and the package's modules lie in several.

    Attributes:
        write_code: called as `write_code(object, folder)` before the object is saved. The `vidcom2` package sets it.
            It writes the code of a config or a processor; for a model, whose config comes next, it only checks.
        check_repo: called as `check_repo(object, repo, token, revision)` before files are sent to the Hub. It returns
            the names of the code files that belong to the object. The `vidcom2` package sets it.
    """

    write_code: ClassVar[Callable[[Any, str | PathLike[str]], None] | None] = None
    check_repo: ClassVar[Callable[[Any, str, Any, str | None], Collection[str]] | None] = None

    @classmethod
    def register_for_auto_class(cls, *args: Any, **kwargs: Any) -> None:
        """Register the class as the parent does, unless it is the package's own, whose code is saved anyway."""
        if SavedWithCode.write_code is None or cls.__module__.partition(".")[0] != __name__.partition(".")[0]:
            super().register_for_auto_class(*args, **kwargs)

    def save_pretrained(self, save_directory: str | PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save the object and its code, with the parent's arguments.

        Raises:
            ValueError: if the folder, or the repo with `push_to_hub=True`, holds a file that this project did not write
                and that has the name of a code file. Nothing is written to the one, or sent to the other.
        """
        if SavedWithCode.write_code is not None:
            SavedWithCode.write_code(self, save_directory)
        elif self._auto_class is not None:
            check_before_copy(type(self), save_directory)
        super().save_pretrained(save_directory, *args, **kwargs)

    def _upload_modified_files(
        self, working_dir: Any, repo_id: str, files_timestamps: dict[str, float], *args: Any, **kwargs: Any
    ) -> Any:
        """Send files to the Hub, as `push_to_hub` and `save_pretrained(push_to_hub=True)` do at their end. Transformers
        leaves out those that are as old as in `files_timestamps`, which is noted after the code is written."""
        if SavedWithCode.check_repo is not None:
            code = SavedWithCode.check_repo(self, repo_id, kwargs.get("token"), kwargs.get("revision"))
            files_timestamps = {name: stamp for name, stamp in files_timestamps.items() if name not in code}
        return super()._upload_modified_files(working_dir, repo_id, files_timestamps, *args, **kwargs)


def check_before_copy(saved_class: type, folder: str | PathLike[str]) -> None:
    """Check that Transformers will not write the code of a class over files of others.

    The check goes by file names alone: without the package, nothing says which contents this project wrote. A folder
    that holds a file named after this project counts as one that was saved before, and is written to.

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
            "the model has files of the same name. Nothing was written there. Move or rename them, or save elsewhere."
        )
