"""Write a digest into each saved file, and compare it before the file is read, so that damage is found.

A file holds the SHA-256 of all its bytes but the 64 of the digest itself, so that copies under any name can be checked. Its
writer puts ``BLANK`` into the format's text, before any text of a user, and :func:`seal` writes the digest over it. A zarr store
holds the digest of all its files in its zarr.json. For the files of a model, which other programs read and write, digests are in
a file SHA256SUMS of the same folder, in the format of ``sha256sum --check``.
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

from diffscope.errors import CorruptFile, MissingChecksum, first_line, translated
from diffscope.storage.atomic import is_pickle, replacing, to_json, write_text

T = TypeVar("T")

KEY = "diffscope_digest"
MARK = b"diffscope-sha256:"
SIZE = 64
END = b" of all other bytes"
LAST = re.compile(b"[0-9a-f]{16}" + END)  # the end of a digest whose beginning is damaged
BLANK = MARK.decode() + SIZE * "0" + END.decode()
SUMS = "SHA256SUMS"
SUM = re.compile(r"^([0-9a-fA-F]{64}) [ *](.+)$", re.MULTILINE)  # a line with a digest; other lines are ignored


def seal(path: Path) -> None:
    """Write the digest of a file or zarr store over its ``BLANK``."""
    offset = _digest_offset(path)
    if offset is None:
        raise ValueError(f"{path} has no place for its digest")
    digest = _digest(path, offset)
    with open(_digest_file(path), "r+b") as file:
        file.seek(offset)
        file.write(digest)


def carries_digest(path: Path) -> bool:
    """Return whether a file or zarr store carries a digest, which may be right, wrong or damaged."""
    with _content(_digest_file(path)) as data:
        return data.find(MARK) >= 0 or data.find(KEY.encode()) >= 0 or LAST.search(data) is not None


def read_proven(path: Path, read: Callable[[Path], T], remedy: str) -> T:
    """Read a file or zarr store after comparing its digest; warn if it has none.

    Parameters
    ----------
    path : Path
    read : callable
        Takes the path and returns the content.
    remedy : str
        The advice for a damaged file, as the end of a sentence.

    Raises
    ------
    CorruptFile
        The file is damaged or was written by something else.
    """
    with translated(CorruptFile, f"{path} cannot be read", remedy, errors=OSError):
        offset = _digest_offset(path)
        carried = offset is not None or carries_digest(path)
        right = offset is not None and _written(path, offset) == _digest(path, offset)
    if carried and not right:
        raise CorruptFile(f"{path} is damaged: its content does not match its digest; {remedy}")
    try:
        content = read(path)
    except Exception as error:  # readers of damaged files raise many kinds of errors
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
    """Write a record atomically as a JSON file with a digest; see :func:`diffscope.storage.atomic.to_json`."""
    with replacing(path) as unfinished:
        unfinished.write_text(to_json({KEY: BLANK, **record}, indent=indent) + "\n", encoding="utf-8")
        seal(unfinished)


def read_proven_json(path: Path, remedy: str) -> dict:
    """Read a record that :func:`write_proven_json` wrote; see :func:`read_proven`."""

    def read(path: Path) -> dict:
        record = json.loads(path.read_text(encoding="utf-8"))
        record.pop(KEY, None)
        return record

    return read_proven(path, read, remedy)


def write_sums(folder: Path, names: Collection[str]) -> None:
    """Write the digests of some files of a folder into its SHA256SUMS, which other processes may be writing as well."""
    lines = [f"{_sha256(folder / name).hexdigest()}  {name}\n" for name in sorted(names)]
    write_text(folder / SUMS, "".join(lines))


def check_sums(folder: Path, only: Collection[str] = ()) -> None:
    """Compare the files of a folder, or `only` some of them, with its SHA256SUMS; a folder without one is accepted.

    Raises
    ------
    CorruptFile
        A file has another content, or is missing.
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


def _digest_file(path: Path) -> Path:
    """Return the file that holds the digest."""
    return path / "zarr.json" if path.is_dir() else path


def _digest_offset(path: Path) -> int | None:
    """Return the offset of the digest in its file, or None."""
    with _content(_digest_file(path)) as data:
        # The metadata of Parquet are at its end.
        mark = data.rfind(MARK) if path.suffix.lower() == ".parquet" else data.find(MARK)
    return mark + len(MARK) if mark >= 0 else None


def _written(path: Path, offset: int) -> bytes:
    with _content(_digest_file(path)) as data:
        return data[offset : offset + SIZE]


def _digest(path: Path, offset: int) -> bytes:
    """Compute the digest of a file, or of all files of a store, with zeros at `offset`."""
    if path.is_file():
        return _sha256(path, offset).hexdigest().encode()
    inside = {file.relative_to(path): file for file in path.rglob("*") if file.is_file()}
    names = sorted(name.as_posix() for name in inside if not name.name.startswith("."))  # hidden files come from file managers
    blanks = {_digest_file(path): offset}
    sums = [f"{_sha256(path / name, blanks.get(path / name)).hexdigest()}  {name}\n" for name in names]
    return hashlib.sha256("".join(sums).encode()).hexdigest().encode()


def _sha256(file: Path, blank: int | None = None):
    """Compute the SHA-256 of a file, with zeros in place of the digest at offset `blank`."""
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
    """Map the bytes of a regular file into memory; OSError for others, since reading a pipe might never end."""
    if not file.is_file():
        raise OSError(errno.EINVAL, "it is no regular file")
    with open(file, "rb") as opened:
        if os.fstat(opened.fileno()).st_size == 0:
            yield b""  # an empty file cannot be mapped
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
