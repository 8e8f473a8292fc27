"""Explaining the Hub's errors to a user. Retries are left to `huggingface_hub`, and to running `publish` again."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
)

TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504}
# Older versions of huggingface_hub use httpx, newer ones httpx2.
TRANSPORT_ERRORS = tuple(import_module(name).TransportError for name in ("httpx", "httpx2") if find_spec(name))
UNREACHABLE = (*TRANSPORT_ERRORS, ConnectionError, LocalEntryNotFoundError)
HUB_ERRORS = (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, *UNREACHABLE)


class PublishError(OSError):
    """The Hub refused, or could not be reached. The repo is unchanged unless the text says otherwise."""


class HubUnreachable(PublishError):
    """The Hub could not be asked."""


@contextmanager
def hub_errors(repo: str) -> Iterator[None]:
    """Turn an error of the Hub into a PublishError about this repo."""
    try:
        yield
    except HUB_ERRORS as error:
        transient = isinstance(error, UNREACHABLE) or (status_of(error) or 0) in TRANSIENT_STATUS
        raise (HubUnreachable if transient else PublishError)(explained(error, repo)) from error


def explained(error: Exception, repo: str) -> str:
    """Say what to do about an error of the Hub. The text quotes no request headers, and so reveals no token."""
    status = status_of(error)
    if isinstance(error, GatedRepoError):
        return f"{repo!r} is gated. Accept its terms on the Hub, and log in with `hf auth login`."
    if isinstance(error, LocalTokenNotFoundError):
        return "you are not logged in. Log in with `hf auth login`."
    if isinstance(error, HFValidationError):
        return f"{repo!r} is no name of a Hub repo, which looks like `org/name`."
    if constants.HF_HUB_OFFLINE and isinstance(error, OfflineModeIsEnabled | LocalEntryNotFoundError):
        return (
            "the Hub is not asked, since HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set. Unset the variable, or name "
            "a folder."
        )
    changed = f"{repo!r} changed while this was being published. Nothing was written. Look at it, and run this again."
    reasons = {
        None: f"the Hub cannot be reached ({type(error).__name__}). Check the connection.",
        401: f"the Hub does not know you, or hides {repo!r} from you. Log in with `hf auth login`.",
        403: f"the Hub forbids this in {repo!r}. To publish, your token needs write access to that organisation or "
        "user.",
        404: f"the Hub has no such repo as {repo!r}, or hides it from you. Check the name, or log in: `hf auth login`.",
        409: changed,
        412: changed,
    } | dict.fromkeys(TRANSIENT_STATUS, f"the Hub answered {status}. Try again later.")
    if isinstance(error, HfHubHTTPError) and status not in reasons:
        return f"the Hub refused {repo!r} with {status}: {error.server_message or 'no reason given'}."
    return reasons[status]


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status of an error of the Hub; None if it has none."""
    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def route_of(error: BaseException | None) -> str:
    """Return the address of the request that failed; an empty string if it is not known."""
    try:
        answered: Any = error.response if isinstance(error, HfHubHTTPError) else error
        return str(answered.request.url)
    except (AttributeError, RuntimeError):
        return ""
