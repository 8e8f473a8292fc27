"""`vidcom2 verify`: use a repo as its users will, in a fresh process, and report what works."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download, snapshot_download, try_to_load_from_cache

from ..families.table import FAMILIES
from ..loading.finding_checkpoints import folder_named, read_object
from ..loading.hub_calls import HubUnreachable, PublishError, hub_errors
from ..repo_shape import CONFIG, FINISHED, refused_pickles

WORKER = Path(__file__).with_name("verification_worker.py")
STDERR_LINES = 12  # so many are shown of a worker that died


class VerificationError(ChildProcessError):
    """Raised if the process that runs the checks ended before its last check."""


class NotVidCom2Error(ValueError):
    """Raised for a repo or a folder that has nothing of VidCom² in it, so that there is nothing to verify."""


@dataclass(frozen=True)
class Check:
    """What a check of a repo found.

    Attributes:
        status: `"passed"`, `"failed"` or `"skipped"` (it does not apply).
        detail: what was found.
    """

    name: str
    status: str
    detail: str


def verify(
    name: str,
    revision: str | None = None,
    device: str = "cpu",
    progress: Callable[[Check], None] = lambda check: None,
) -> list[Check]:
    """Check a Hub repo (`org/name`) or a folder in a process in which `vidcom2` cannot be imported.

    That process runs the code of the repo, as with `trust_remote_code=True`. A repo is first downloaded as a whole, at
    the commit that the Hub has now, into the usual cache, unless its weights are pickled: then that is all that is
    reported. The cache of remote code is an empty one.

    Args:
        progress: called with each result as it comes.

    Raises:
        VerificationError: if that process dies.
        OptionError: if there is no such folder, if a revision is given for a folder, or if a package is missing that
            the repo's processor needs.
        NotVidCom2Error: if it is something else, such as a stock checkpoint or an empty folder.
        CheckpointError: if its config.json cannot be read.
        PublishError: if the Hub has no such repo, or cannot be reached.
    """
    folder, checks = folder_named(name, revision), []
    if folder is not None:
        _checked_config(name, f"the folder {name!r}", folder / CONFIG)
    else:
        folder, commit, files = _found_on_the_hub(name, revision)
        checks.append(Check("commit", "passed", f"{commit}, which is what the Hub has at {revision or 'main'}"))
        if refusal := refused_pickles(files):
            checks.append(Check("files", "failed", refusal))
        for check in checks:
            progress(check)
        if refusal:
            return checks
        with hub_errors(name):
            snapshot_download(name, revision=commit)
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile("w+") as stderr:
        environment = os.environ | {
            "HF_MODULES_CACHE": str(Path(scratch, "modules")),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        # `python FILE` would put the folder of that file on the path, and so make its modules importable.
        start = f"import runpy; runpy.run_path({str(WORKER)!r}, run_name='__main__')"
        command = [sys.executable, "-c", start, str(folder.resolve()), device]
        is_finished = False
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=scratch, env=environment
        ) as process:
            for line in process.stdout or []:
                is_finished = line.strip() == FINISHED
                if line.startswith('{"name"'):
                    checks.append(Check(**json.loads(line)))
                    progress(checks[-1])
        if process.returncode != 0 or not is_finished:
            stderr.seek(0)
            tail = "\n".join(stderr.read().splitlines()[-STDERR_LINES:])
            raise VerificationError(f"the checks of {name!r} ended with code {process.returncode}:\n{tail}")
    return checks


def failures(checks: list[Check]) -> list[Check]:
    return [check for check in checks if check.status == "failed"]


def _found_on_the_hub(name: str, revision: str | None) -> tuple[Path, str, list[str]]:
    """Return the folder of a repo in the cache, of which it has the config alone so far, its commit, and its files.

    Raises what `verify` raises. A cached commit does not stand in for a Hub that cannot be asked.
    """
    try:
        with hub_errors(name):
            info = HfApi().model_info(name, revision=revision)
            commit, files = str(info.sha), [file.rfilename for file in info.siblings or []]
            config = Path(hf_hub_download(name, CONFIG, revision=commit)) if CONFIG in files else None
    except PublishError as error:
        reason = f"there is no folder {name!r}, and {error}"
        if isinstance(error, HubUnreachable) and isinstance(
            cached := try_to_load_from_cache(name, CONFIG, revision=revision), str
        ):
            reason += f" To check the commit that the cache has, name its folder: {Path(cached).parent}"
        raise type(error)(reason) from error
    config = _checked_config(name, f"the repo {name!r}", config)
    return config.parent, commit, files


def _checked_config(name: str, what: str, config: Path | None) -> Path:
    """Check that there is something of VidCom² to verify, and what its processor needs, and return its config's path.
    Raises what `verify` raises."""
    if config is None or not config.is_file():
        raise NotVidCom2Error(f"{what} holds no {CONFIG}, so it is not a checkpoint.")
    if (family := FAMILIES.get(str(read_object(config).get("model_type")))) is not None:
        family.check_packages()
    if "vidcom2" not in config.read_text(encoding="utf-8", errors="replace").lower():
        raise NotVidCom2Error(
            f"{what} is not a VidCom² repo: its {CONFIG} does not name VidCom². Make one from it with `vidcom2 publish "
            f"--base {name} --repo org/name`."
        )
    return config
