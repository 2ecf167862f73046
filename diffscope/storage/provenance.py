"""Name the versions that results are made with, and compare them with those that run here."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata

from diffscope.numbers import listed

version = cache(metadata.version)  # of a package that is installed: to look it up takes longer than to write a result
VERSION = version("diffscope-attention")
NAMES = {"python": "Python"}  # names of programs that differ from their attribute


def provenance(dated: bool = True) -> dict[str, str]:
    """Return the versions of programs and, if `dated`, the time, as attributes of a file."""
    attrs = {
        "diffscope": VERSION,
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    if dated:
        attrs["created"] = datetime.now(UTC).isoformat(timespec="seconds")
    return attrs


def other_versions(made: Iterable[Mapping[str, str]], **here: str) -> str:
    """Return the versions that results were made with, if they differ from those that run here.

    Parameters
    ----------
    made : iterable of mapping
        The attributes of each result, as :func:`provenance` gives them.
    **here : str
        Other facts to compare, such as the revision.

    Returns
    -------
    str
        Such as "torch 2.13.0+cpu (2.14.0 here)"; empty if all versions are equal.
    """
    made = list(made)
    parts = []
    for name, this in {**provenance(dated=False), **here}.items():
        versions = sorted({attributes[name] for attributes in made if name in attributes})
        if versions and versions != [this]:
            parts.append(f"{NAMES.get(name, name)} {listed(versions)} ({this} here)")
    return ", ".join(parts)
