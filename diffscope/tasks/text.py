"""Real text, the same on every machine: the documentation strings of the standard library of Python 3.11.7.

They lie beside this module as ``standard_library.json.gz``, so that a prompt drawn from a seed has the same words whatever
Python draws it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("standard_library.json.gz")


@cache
def standard_library_text(held_out: bool) -> tuple[str, ...]:
    """Documentation strings of Python's standard library, in a fixed order.

    Parameters
    ----------
    held_out : bool
        Modules are split by a hash of their path; ``True`` gives the 8 % that training never sees.

    Returns
    -------
    tuple of str
        One string a docstring, white space collapsed, duplicates removed.
    """
    texts = json.loads(gzip.decompress(FILE.read_bytes()))
    return tuple(texts["held_out" if held_out else "training"])


def fingerprint(texts: tuple[str, ...]) -> str:
    """SHA-256 of a body of text, for model cards: which text exactly was this trained on."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()
