"""Calls to the Hub: what is tried again, and what its errors mean to a user."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

TRIES, FIRST_PAUSE = 4, 1.0  # seconds, doubled each time
TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504}
# huggingface_hub went from httpx to httpx2.
TRANSPORT_ERRORS = tuple(import_module(name).TransportError for name in ("httpx", "httpx2") if find_spec(name))
UNREACHABLE = (*TRANSPORT_ERRORS, ConnectionError, LocalEntryNotFoundError)  # the last two of what was tried before
HUB_ERRORS = (HfHubHTTPError, HFValidationError, *UNREACHABLE)

T = TypeVar("T")


class PublishError(OSError):
    """The Hub refused, or could not be reached; the repo is as it was unless the text says otherwise."""


class HubUnreachable(PublishError):
    """The Hub could not be asked."""


def with_retries(
    call: Callable[[], T], landed: Callable[[Exception], Any] = lambda error: None, tries: int | None = None
) -> T:
    """`call()`, again after a pause when the Hub stumbles or the connection breaks.

    Args:
        landed: asked with the error, before each new try, for the result of a call that was carried out but not
            answered.
        tries: how often it is called at most; `TRIES` if None.
    """
    tries = TRIES if tries is None else tries
    for tried in range(tries):
        try:
            return call()
        except HUB_ERRORS as error:
            if not _is_transient(error) or tried == tries - 1:
                raise
            time.sleep(FIRST_PAUSE * 2**tried)
            if (result := landed(error)) is not None:
                return result
    raise AssertionError("the last try returns or raises")


def _is_transient(error: Exception) -> bool:
    if "/preupload/" in route_of(error):  # which huggingface_hub has tried often enough
        return False
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in TRANSIENT_STATUS
    return isinstance(error, TRANSPORT_ERRORS)


def explained(error: Exception, repo: str) -> str:
    """What to do about an error of the Hub. Nothing in it comes from a request's headers, and so no token."""
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, GatedRepoError):
        return f"{repo!r} is gated. Accept its terms on the Hub, and log in with `hf auth login`."
    if status == 401:
        return f"the Hub does not know you, or hides {repo!r} from you. Log in with `hf auth login`."
    if status == 403:
        return (
            f"the Hub forbids this in {repo!r}. To publish, your token needs write access to that organisation or user."
        )
    if status == 404:
        return f"the Hub has no {repo!r}, or hides it from you. Check the name, and log in with `hf auth login`."
    if status in (409, 412):
        return f"{repo!r} changed while this was being published. Nothing was written; look at it, and run again."
    if isinstance(error, HFValidationError):
        return f"{repo!r} is no name of a Hub repo, which reads `org/name`."
    if isinstance(error, OfflineModeIsEnabled) or (
        isinstance(error, LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE
    ):
        return (
            f"the Hub is not asked for {repo!r}, since HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set. Unset it, or "
            "name a folder."
        )
    if status is not None and status not in TRANSIENT_STATUS:
        return f"the Hub refused {repo!r} with {status}: {error.server_message or 'no reason given'}."
    what = f"answered {status}" if status is not None else f"could not be reached ({type(error).__name__})"
    return f"the Hub {what} again and again. Try again later."


def route_of(error: Exception) -> str:
    """Address of the request that failed; empty if it is not known."""
    try:
        request = error.response.request if isinstance(error, HfHubHTTPError) else error.request
        return str(request.url)
    except (AttributeError, RuntimeError):
        return ""


@contextmanager
def hub_errors(repo: str) -> Iterator[None]:
    """Errors of the Hub as a PublishError about this repo."""
    try:
        yield
    except HUB_ERRORS as error:
        kind = HubUnreachable if isinstance(error, UNREACHABLE) or _is_transient(error) else PublishError
        raise kind(explained(error, repo)) from error
