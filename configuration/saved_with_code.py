"""What is saved, a model, its config or its processor, goes along with the code that loads it."""

import inspect
from collections.abc import Callable
from os import PathLike
from os.path import basename, isfile, join
from typing import TYPE_CHECKING, Any, ClassVar

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
    """Comes before the parent class in the bases of a config, a model or a processor.

    For a class that came from a Hub repo Transformers knows the files of code, and copies them. For a class of the
    installed package it does not, and the folder would load as the stock model, uncompressed, without a word.

    Attributes:
        write_code: called as `write_code(object, folder)` before the object is saved. The `vidcom2` package sets it; it
            copies the code into the folder and names the classes and the files' sha256 in the config.
        check_repo: called as `check_repo(object, repo, token, revision)` before the object is sent to the Hub. The
            `vidcom2` package sets it.
    """

    write_code: ClassVar[Callable[[Any, str | PathLike[str]], None] | None] = None
    check_repo: ClassVar[Callable[[Any, str, Any, str | None], None] | None] = None

    @classmethod
    def register_for_auto_class(cls, *args: Any, **kwargs: Any) -> None:
        """As the parent's. Of the installed package's own classes the code goes along anyway."""
        if SavedWithCode.write_code is None or cls.__module__.partition(".")[0] != __name__.partition(".")[0]:
            super().register_for_auto_class(*args, **kwargs)

    def save_pretrained(self, save_directory: str | PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As the parent's.

        Raises:
            ValueError: if the folder holds a file that is not of this project and has the name of one of the files of
                code; nothing is written.
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
        """Files that `push_to_hub=True` leaves out unless they change: not the code, written a moment ago."""
        code = getattr(self, "vidcom2_code_sha256", {})
        stamps = super()._get_files_timestamps(working_dir)
        return {name: stamp for name, stamp in stamps.items() if name not in code}

    def push_to_hub(self, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        """As the parent's.

        Raises:
            ValueError: if the repo holds a file that is not of this project and has the name of one of the files of
                code; nothing is sent.
        """
        if SavedWithCode.check_repo is not None:
            SavedWithCode.check_repo(self, repo_id, kwargs.get("token"), kwargs.get("revision"))
        return super().push_to_hub(repo_id, *args, **kwargs)


def check_before_copy(saved_class: type, folder: str | PathLike[str]) -> None:
    """Refuse a folder in which Transformers would write the code of a class over files of others.

    By their names alone, since code in a Hub repo opens no files: a folder with a file that is named after this project
    is one that was saved before.

    Raises:
        ValueError: if files of these names are there, and none that is named after this project.
    """
    from transformers.dynamic_module_utils import get_relative_import_files  # not to be waited for on import

    own = inspect.getfile(saved_class)
    names = sorted({basename(file) for file in (own, *get_relative_import_files(own))})
    taken = [name for name in names if isfile(join(folder, name))]
    if not any("vidcom2" in name for name in taken):
        refuse_taken(taken, f"the folder {str(folder)!r}")


def refuse_taken(taken: list[str], where: str) -> None:
    """Raises a ValueError if there are names of code that files of others have."""
    if taken:
        raise ValueError(
            f"{where} holds {', '.join(map(repr, taken))}, which this project did not write, and the code saved with "
            "the model has files of the same name. Nothing was written. Move or rename them, or save to another place."
        )
