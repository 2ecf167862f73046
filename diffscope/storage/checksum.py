"""The digest that whatever is kept carries, so that damage is seen before anything is read.

A file holds the SHA-256 of all its bytes but the digest's own 64, so that a copy of it, under any name, proves itself too. Its
writer leaves ``BLANK`` where the format keeps text, before any text of a user, and :func:`seal` writes the digest there. A zarr
store holds that of all its files in its zarr.json. The files of a model, which other programs read and write, stand in a
SHA256SUMS beside them, as ``sha256sum --check`` reads it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from diffscope.errors import CorruptFile, MissingChecksum, first_line
from diffscope.storage.atomic import is_pickle, replacing, to_json, write_text

T = TypeVar("T")

KEY = "diffscope_digest"
MARK = b"diffscope-sha256:"
SIZE = 64
END = b" of all other bytes"
LAST = re.compile(b"[0-9a-f]{16}" + END)  # what is left where the rest is damaged
BLANK = MARK.decode() + SIZE * "0" + END.decode()
SUMS = "SHA256SUMS"
SUM = re.compile(r"^([0-9a-fA-F]{64}) [ *](.+)$", re.MULTILINE)  # a line of it; there may be others


def seal(path: Path) -> None:
    """Write the digest of a file, or of a zarr store, where its writer left ``BLANK``."""
    at = _place(path)
    if at is None:
        raise ValueError(f"{path} has no place for its digest")
    digest = _digest(path, at)
    with open(_home(path), "r+b") as file:
        file.seek(at)
        file.write(digest)


def carries_digest(path: Path) -> bool:
    """Whether a file, or a zarr store, carries a digest, be it right, wrong or damaged itself."""
    with _content(_home(path)) as data:
        return data.find(MARK) >= 0 or data.find(KEY.encode()) >= 0 or LAST.search(data) is not None


def read_proven(path: Path, read: Callable[[Path], T], remedy: str) -> T:
    """Read a file, or a zarr store, whose content is what was saved; of one without a digest, warn.

    Parameters
    ----------
    path : Path
    read : callable
        Takes the path and returns what is in it.
    remedy : str
        What to do about a damaged file, as the end of a sentence.

    Raises
    ------
    CorruptFile
        The file is damaged or was written by something else.
    """
    try:
        at = _place(path)
        carried = at is not None or carries_digest(path)
        right = at is not None and _written(path, at) == _digest(path, at)
    except OSError as error:
        raise CorruptFile(f"{path} cannot be read ({first_line(error)}); {remedy}") from None
    if carried and not right:
        raise CorruptFile(f"{path} is damaged: its content does not match its digest; {remedy}")
    try:
        content = read(path)
    except Exception as error:  # on damage, the readers of formats raise anything
        if path.is_file() and is_pickle(path):
            raise CorruptFile(f"{path} is a pickle (as torch.save writes), not a file of diffscope; {remedy}") from None
        reason = first_line(error) or type(error).__name__
        raise CorruptFile(f"{path} is damaged or was not written by diffscope ({reason}); {remedy}") from error
    if not carried:
        warnings.warn(
            f"{path} carries no digest, so damage to it goes unseen; save it again to add one", MissingChecksum, stacklevel=3
        )
    return content


def write_proven_json(path: Path, record: dict, *, indent: int | None = None) -> None:
    """Write a record as a JSON file that carries a digest, whole or not at all; see :func:`diffscope.storage.atomic.to_json`."""
    with replacing(path) as unfinished:
        unfinished.write_text(to_json({KEY: BLANK, **record}, indent=indent) + "\n", encoding="utf-8")
        seal(unfinished)


def read_proven_json(path: Path, remedy: str) -> dict:
    """The record that :func:`write_proven_json` wrote; see :func:`read_proven`."""

    def read(path: Path) -> dict:
        record = json.loads(path.read_text(encoding="utf-8"))
        record.pop(KEY, None)
        return record

    return read_proven(path, read, remedy)


def write_sums(folder: Path, names: Collection[str]) -> None:
    """Write the digests of some files of a folder into its SHA256SUMS."""
    lines = [f"{_sha256(folder / name).hexdigest()}  {name}\n" for name in sorted(names)]
    write_text(folder / SUMS, "".join(lines), alone=True)


def check_sums(folder: Path, only: Collection[str] = ()) -> None:
    """Compare the files of a folder with its SHA256SUMS, or `only` some of them; one without it was written by something else.

    Raises
    ------
    CorruptFile
        A file has another content, or is gone.
    """
    sums = folder / SUMS
    if not sums.is_file():
        return
    for digest, name in SUM.findall(sums.read_text(encoding="utf-8", errors="replace")):
        if only and name not in only:
            continue
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CorruptFile(f"{sums} names {name!r}, which is not in its folder; remove {SUMS}, or copy the folder again")
        try:
            right = _sha256(folder / name).hexdigest() == digest.lower()
        except (OSError, ValueError):
            raise CorruptFile(f"{folder} lacks {name!r}, which its {SUMS} names; copy the folder again") from None
        if not right:
            raise CorruptFile(
                f"{folder / name} is damaged: its content does not match its digest in {SUMS}; "
                f"copy it again, or remove {SUMS} if you changed it yourself"
            )


def _home(path: Path) -> Path:
    """The file that holds the digest."""
    return path / "zarr.json" if path.is_dir() else path


def _place(path: Path) -> int | None:
    """Where the characters of the digest begin; None where there is none."""
    with _content(_home(path)) as data:
        at = data.rfind(MARK) if path.suffix.lower() == ".parquet" else data.find(MARK)  # Parquet's metadata stand at its end
    return at + len(MARK) if at >= 0 else None


def _written(path: Path, at: int) -> bytes:
    with _content(_home(path)) as data:
        return data[at : at + SIZE]


def _digest(path: Path, at: int) -> bytes:
    """What belongs at this place: the digest of the file, or of the store's files by name, with the place itself blank."""
    if path.is_file():
        return _sha256(path, at).hexdigest().encode()
    inside = {file.relative_to(path): file for file in path.rglob("*") if file.is_file()}
    names = sorted(name.as_posix() for name in inside if not name.name.startswith("."))  # file managers leave hidden ones
    sums = [f"{_sha256(path / name, at if path / name == _home(path) else None).hexdigest()}  {name}\n" for name in names]
    return hashlib.sha256("".join(sums).encode()).hexdigest().encode()


def _sha256(file: Path, blank: int | None = None):
    """The SHA-256 of a file, whose characters of a digest from `blank` on count as zeros."""
    digest = hashlib.sha256()
    with _content(file) as data, memoryview(data) as view:
        if blank is None:
            digest.update(view)
        else:
            digest.update(view[:blank])
            digest.update(SIZE * b"0")
            digest.update(view[blank + SIZE :])
    return digest


@contextmanager
def _content(file: Path) -> Iterator[mmap.mmap | bytes]:
    """The bytes of a file, without a copy in memory; OSError where it is none: a pipe would be waited for without end."""
    if not file.is_file():
        raise OSError(errno.EINVAL, "it is no regular file")
    with open(file, "rb") as opened:
        if os.fstat(opened.fileno()).st_size == 0:
            yield b""  # nothing cannot be mapped
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
