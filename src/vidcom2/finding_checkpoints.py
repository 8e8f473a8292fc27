"""Finding a checkpoint, in a folder or in a repo that the Hub is asked for once. Nothing is loaded."""

from pathlib import Path
from typing import Any

from .errors import CheckpointError, OptionError
from .toys import toy_of

HUB_SECONDS = 10  # how long the Hub may take to say whether it has a checkpoint


def find_checkpoint(name: str, revision: str | None = None, **hub: Any) -> str:
    """Return where Transformers finds the checkpoint: a folder's path, or the Hub id unchanged.

    The Hub is asked once. Transformers would ask for a missing repo again and again, for half a minute.

    Args:
        **hub: how Transformers will ask for it: `token`, `cache_dir`, `local_files_only`.

    Raises:
        CheckpointError: if neither this machine nor the Hub has it, or the Hub cannot be asked.
        OptionError: if a revision is given for a folder.
    """
    if not name.strip():
        raise CheckpointError(
            f"cannot load the model {name!r}: the name is empty. Name a folder, or a Hub id: org/name."
        )
    toy = toy_of(name)
    if toy is not None and revision is not None:
        raise OptionError(f"`revision` is {revision!r}, but the model {name!r} comes with vidcom2 and has none.")
    folder = toy.folder if toy is not None else Path(name).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise OptionError(f"`revision` is {revision!r}, but the model {name!r} is a folder, which has none.")
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"cannot load the model {name!r}: the folder has no config.json.")
        return str(folder)
    if folder.exists():
        raise CheckpointError(f"cannot load the model {name!r}: it is a file. Name the checkpoint's folder.")
    _ask_the_hub(name, revision, **hub)
    return name


def check_hub_id(name: str) -> None:
    """Check that a name which is not a folder could be a Hub id.

    Raises:
        CheckpointError: if it could not.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    refused = f"cannot load the model {name!r}: there is no such folder, and "
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise CheckpointError(refused + "it is no Hub id, which looks like org/name.") from None
    if "/" not in name:
        raise CheckpointError(refused + "a Hub id has its organisation in front, as in org/name.")


def _ask_the_hub(
    name: str,
    revision: str | None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    **_: Any,
) -> None:
    """Check that the Hub, or its cache on this machine, has the checkpoint. Raises a CheckpointError if not."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    from .hub_calls import TRANSPORT_ERRORS

    def refused(reason: str) -> CheckpointError:
        return CheckpointError(f"cannot load the model {name!r}: there is no such folder, and {reason}")

    check_hub_id(name)
    if isinstance(try_to_load_from_cache(name, "config.json", cache_dir=cache_dir, revision=revision), str):
        return
    if local_files_only:
        raise refused("the cache does not have it, and `local_files_only` is set. Leave it out to ask the Hub.")
    try:
        files = HfApi(token=token).model_info(name, revision=revision, timeout=HUB_SECONDS).siblings
    except GatedRepoError:
        raise refused("the Hub's repo is gated. Accept its terms there, and log in with `hf auth login`.") from None
    except RepositoryNotFoundError:
        raise refused("the Hub has no such repo, or hides it from you (`hf auth login`). Check the name.") from None
    except RevisionNotFoundError:
        raise refused(f"the Hub's repo has no commit, tag or branch {revision!r}.") from None
    except OfflineModeIsEnabled:
        raise refused(
            "the Hub is not asked, since HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set, and the cache does not have "
            "the model. Unset the variable, or name a folder."
        ) from None
    except HfHubHTTPError as error:
        raise refused(f"the Hub answered {error.response.status_code}. Try again later.") from error
    except TRANSPORT_ERRORS as error:
        raise refused(f"the Hub cannot be reached ({error}). Check the name and the connection.") from error
    if "config.json" not in {file.rfilename for file in files or []}:
        raise refused("the Hub's repo has no config.json: it is not a Transformers checkpoint.")
