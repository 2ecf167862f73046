"""Say of a model that is not to be had from the Hugging Face hub whether the hub lacks it or cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from socket import gaierror

from huggingface_hub.errors import LocalEntryNotFoundError

from diffscope.errors import ModelNotFound, first_line, translated

UNREACHED = (ConnectionError, TimeoutError, gaierror, LocalEntryNotFoundError)  # offline mode is a ConnectionError


@contextmanager
def asked_of_hub(name: str) -> Iterator[None]:
    """Raise errors in fetching a model, which is no folder here, as ModelNotFound."""
    with translated(ModelNotFound, f"no model {name!r}: not a folder, and not to be had from the hub"):
        try:
            yield
        except Exception as error:
            if not _is_unreached(error):
                raise
            raise ModelNotFound(
                f"{name!r} is no folder here, and the hub cannot be reached ({first_line(error)}); give a folder"
            ) from None


def _is_unreached(error: BaseException) -> bool:
    """Return whether an error, or what it was raised from, is that of a connection."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return isinstance(error, UNREACHED) or (earlier is not None and _is_unreached(earlier))
