"""Every failure that a user can cause or meet, in one line that says what is wrong and what to do.

Whatever else reaches the user as a traceback is a defect of diffscope.
"""

import re
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any

__all__ = [
    "CorruptFile",
    "DiffscopeError",
    "DiffscopeWarning",
    "FidelityError",
    "InsufficientMemory",
    "MeasurementInterrupted",
    "MissingChecksum",
    "MissingExtra",
    "ModelNotFound",
    "PromptError",
    "SpanError",
    "UnsupportedModel",
]


class DiffscopeError(Exception):
    """An expected failure; ``str(error)`` is one line: what is wrong, and what to do about it.

    What a file has put into it cannot act on a terminal: line breaks and tabs become spaces, and other control characters are
    shown as Python writes them.
    """

    def __str__(self):
        one_line = re.sub(r"\s*[^\S ]\s*", " ", super().__str__())
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in one_line)


class DiffscopeWarning(UserWarning):
    """A fact that the user of a model should know, although its results are right."""


class MissingChecksum(DiffscopeWarning):
    """A file carries no digest, so that damage to it goes unseen; saved again, it has one."""


class ModelNotFound(DiffscopeError):
    """No bundled model, folder or hub id has this name, or it cannot be fetched."""


class UnsupportedModel(DiffscopeError):
    """The model exists, but diffscope has no family that reads its attention."""


class PromptError(DiffscopeError):
    """The prompt is empty, too long for the model, not a prompt, or ambiguous."""


class SpanError(DiffscopeError):
    """A span does not occur in the prompt, occurs more than once, or lies outside of it."""


class FidelityError(DiffscopeError):
    """The attention rebuilt from a capture is not the attention that the model used."""


class CorruptFile(DiffscopeError):
    """A file is damaged, incomplete, or was not written by diffscope."""


class MissingExtra(DiffscopeError):
    """An optional package is needed and not installed."""


class InsufficientMemory(DiffscopeError):
    """A computation would not fit into memory; raised before it begins."""


class MeasurementInterrupted(KeyboardInterrupt):
    """Measuring was interrupted; ``measured`` is the Dataset of the layers that were finished.

    It is a KeyboardInterrupt: a script that does not catch it ends, as it does anywhere else.
    """

    def __init__(self, measured):
        super().__init__(f"stopped after layers {', '.join(map(str, measured['layer'].values))}")
        self.measured = measured


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, without the advice that follows, at most 200 characters."""
    return str(error).strip().partition("\n")[0][:200]


@contextmanager
def translated(
    kind: type[DiffscopeError],
    problem: str,
    remedy: str = "",
    *,
    errors: type[Exception] | tuple[type[Exception], ...] = Exception,
    lines: int = 1,
) -> Iterator[None]:
    """Raise errors of another library as an error of diffscope: ``PROBLEM (their first line); REMEDY``.

    Errors of diffscope pass unchanged. A message of one word, such as the key of a KeyError, gets the name of its class.

    Parameters
    ----------
    kind : type of DiffscopeError
        The error to raise.
    problem : str
        What is wrong, with the value.
    remedy : str, optional
        What to do.
    errors : type of exception, or tuple of them, optional
        The errors to translate; by default all, for code that may raise anything.
    lines : int
        Lines of the message to quote.

    Raises
    ------
    DiffscopeError
        Of the given kind.
    """
    try:
        yield
    except DiffscopeError:
        raise
    except errors as error:
        advice = f"; {remedy}" if remedy else ""
        raise kind(f"{problem} ({_reason(error, lines)}){advice}") from None


def _reason(error: Exception, lines: int) -> str:
    text = " ".join(" ".join(str(error).strip().split("\n")[:lines]).split())[:200]
    return text if " " in text else ": ".join(filter(None, (type(error).__name__, text)))


class Missing(DiffscopeError):
    """A test cannot be run; the message names what it needs."""


def check_index(what: str, index: int | None, indices: Sequence[int], label: str = "") -> None:
    """Raise DiffscopeError unless `index` is among `indices`, or None.

    Parameters
    ----------
    what : str
        "layer", "head" or "prompt".
    index : int or None
        None if none was chosen.
    indices : sequence of int
        The known ones, ascending; a model need not have attention in every layer.
    label : str
        Begins the message.
    """
    if index is None or index in indices:
        return
    consecutive = len(indices) > 2 and list(indices) == list(range(indices[0], indices[-1] + 1))
    choices = f"{indices[0]} to {indices[-1]}" if consecutive else ", ".join(map(str, indices))
    begin = f"{label}: " if label else ""
    shown = repr(str(index)) if isinstance(index, str) else index  # quoted, as '1' is text and no number
    raise DiffscopeError(f"{begin}there is no {what} {shown}; choose from {choices or 'none'}")


def check_several(what: str, values: Any, example: Any) -> None:
    """Raise DiffscopeError unless `values` is a list, an array or the like; `what` names them, `example` is right."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sized) or getattr(values, "ndim", 1) == 0:
        raise DiffscopeError(f"{what} are given as a list, such as {example!r}, and not as {values!r}")


def check_choice(what: str, choice: Any, known: Iterable[Any]) -> None:
    """Raise DiffscopeError, which names the known ones, unless `choice` is one of them; `what` they are, as a noun."""
    known = list(known)
    if choice not in known:
        raise DiffscopeError(f"there is no {what} {choice!r}; choose from {', '.join(map(str, known)) or 'none'}")
