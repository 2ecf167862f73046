"""What a person reads: failures in a line, and text that Markdown leaves as it is."""

from __future__ import annotations

import contextlib
import logging

import streamlit as st

from diffscope.cli.output import OUT_OF_MEMORY, ran_out_of_memory
from diffscope.errors import DiffscopeError, first_line

MARKS = "&\\`*_{}[]()#+-!|~<>$:"


@contextlib.contextmanager
def show_errors():
    """An expected failure becomes one line on the page, and the block that failed is left out."""
    try:
        yield
    except DiffscopeError as error:
        st.warning(escape_markdown(str(error)))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        st.warning(escape_markdown(f"{where}{error.strerror or error}; check the path, its permissions and the space left"))
    except OverflowError:  # of Streamlit, where a number in the address is without bounds
        st.warning("A number in the address of this page is too large; open the page without it.")
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        st.warning(escape_markdown(OUT_OF_MEMORY))


def in_a_line(error: Exception) -> str:
    """What is said of a failure of background work; the traceback of an unexpected one goes to the terminal."""
    if isinstance(error, DiffscopeError):
        return str(error)
    if isinstance(error, (MemoryError, RuntimeError)) and ran_out_of_memory(error):
        return OUT_OF_MEMORY
    logging.getLogger("diffscope").error("background work failed", exc_info=error)
    return f"a defect of diffscope, {type(error).__name__}: {first_line(error)}; its traceback is where the dashboard was started"


def escape_markdown(text: str) -> str:
    """Text that Streamlit must not read as Markdown."""
    return "".join("\\" + c if c in MARKS else c for c in text).replace("\n", " ")


def as_call(function: str, subject: str, choices: dict) -> str:
    """A line of Python that calls a function with keywords."""
    return f"{function}({', '.join([subject, *(f'{name}={value!r}' for name, value in choices.items())])})\n"
