"""Write files that appear under their names only when they are complete, and JSON without NaN."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diffscope.errors import DiffscopeError

LONGEST_NAME = 255  # bytes of a file name that file systems accept
LONGEST_PATH = 4095  # bytes of a path that Linux accepts
UNFINISHED = 16  # bytes by which the name of an unfinished file is longer


def is_pickle(path: str | os.PathLike) -> bool:
    """Return whether a file is a pickle, as ``torch.save`` writes: an archive with a data.pkl, or a bare stream."""
    with open(path, "rb") as file:
        begins = file.read(8)
    if begins.startswith(b"PK"):
        try:
            with zipfile.ZipFile(path) as archive:
                return any(name.rpartition("/")[2] == "data.pkl" for name in archive.namelist())
        except Exception:  # zipfile raises many kinds of errors for damaged archives
            return False
    # A safetensors file begins with the length of its header, whose last bytes are zeros.
    return len(begins) == 8 and begins[0] == 0x80 and 2 <= begins[1] <= 5 and any(begins[3:])


def checked_path(path: object, longest: int = LONGEST_NAME) -> Path:
    """Return the name of a file as a path.

    Parameters
    ----------
    path : object
    longest : int
        The most bytes of each name in the path.

    Raises
    ------
    DiffscopeError
        It is not a path, or file systems do not accept it.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise DiffscopeError(f"a file is named by a path, not by {path!r}; give a string or a pathlib.Path")
    name = os.fspath(path)
    if not isinstance(name, str) or "\0" in name:
        raise DiffscopeError(f"{name!r} is no path, which is text without null characters; give another name")
    if not name.strip():
        raise DiffscopeError("an empty name is no path; give the name of a file")
    size = max((len(os.fsencode(part)) for part in Path(name).parts), default=0)
    if size > longest:
        raise DiffscopeError(f"the name {Path(name).name[:60]!r}… has {size:,} bytes, and {longest} are taken; shorten it")
    if len(os.fsencode(name)) > LONGEST_PATH:
        raise DiffscopeError(f"the path {name[:60]!r}… has {len(os.fsencode(name)):,} bytes, and {LONGEST_PATH:,} are taken")
    return Path(name)


def existing_path(path: object) -> Path:
    """Return the path of a file or folder to read; DiffscopeError if there is none."""
    path = checked_path(path)
    if not path.exists():
        raise DiffscopeError(f"there is no {path}; check the name")
    return path


def check_target(path: str | os.PathLike) -> None:
    """Refuse a path that cannot be written, or that is a folder with other files.

    Raises
    ------
    DiffscopeError
        There is no such folder, or the path is itself a folder that is not a zarr store.
    """
    path = checked_path(path, LONGEST_NAME - UNFINISHED)
    if not path.parent.is_dir():
        raise DiffscopeError(f"there is no folder {path.parent} to write {path.name} into; make it first")
    if path.is_dir() and not (path.suffix.lower() == ".zarr" and (path / "zarr.json").is_file()):
        raise DiffscopeError(f"{path} is a folder, which would be lost; give the name of a file")


@contextmanager
def replacing(path: str | os.PathLike, *, alone: bool = False) -> Iterator[Path]:
    """Yield a temporary path, and move the file or folder that was written there to `path` when the block ends.

    The temporary path is in a new folder next to `path`, which is removed with anything else in it. If the block raises, `path`
    stays as it was.

    Parameters
    ----------
    path : path-like
    alone : bool
        Whether no other process writes to `path`, so that the unfinished files of a killed process can be removed.

    Raises
    ------
    DiffscopeError
        The folder takes no new file; see also :func:`check_target`.
    """
    path = checked_path(path)
    check_target(path)
    workspace = _workspace(path, alone)
    earlier = workspace / f"{path.name}.replaced"  # a folder, which no other can be moved over
    try:
        yield workspace / path.name
        _share(workspace / path.name)
        if path.is_dir():
            path.rename(earlier)
        os.replace(workspace / path.name, path)
    finally:
        if earlier.exists() and not path.exists():
            earlier.rename(path)
        remove(workspace)


def _workspace(path: Path, alone: bool) -> Path:
    """Make the folder next to `path` in which it is written; DiffscopeError if none can be made there."""
    try:
        if not alone:
            return Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
        workspace = unfinished_folder(path)
        remove(workspace)
        workspace.mkdir()
        return workspace
    except OSError as error:
        if disk_is_full(error):
            raise
        reason = error.strerror or error
        raise DiffscopeError(f"{path.parent} takes no new file ({reason}); write {path.name} into another folder") from None


def _share(path: Path) -> None:
    """Give a file, or the files of a folder, the usual permissions: safetensors makes its files private."""
    plain = path.with_name("plain-file")
    plain.touch()
    for file in [path] if path.is_file() else path.rglob("*.safetensors"):
        shutil.copymode(plain, file)


def unfinished_folder(path: Path) -> Path:
    """Return the folder in which the only writer of `path` works until the file is complete."""
    return path.with_name(f".unfinished-{path.name}")


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def write_text(path: str | os.PathLike, text: str, *, alone: bool = False) -> None:
    """Write a text file in UTF-8 atomically; see :func:`replacing`."""
    with replacing(path, alone=alone) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike, value, *, indent: int | None = None, alone: bool = False) -> None:
    """Write a value as a JSON file atomically; see :func:`to_json` and :func:`replacing`."""
    write_text(path, to_json(value, indent=indent) + "\n", alone=alone)


def to_json(value, *, indent: int | None = None) -> str:
    """Write a value as JSON; numbers that are not finite become null, see :func:`plain`."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def plain(value):
    """Convert a value to the types of JSON.

    Arrays and tuples become lists. Keys, and values that JSON has no type for, become text. NaN and infinities become None.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)


# A full disk


def disk_is_full(error: BaseException | None) -> bool:
    """Return whether an exception, or its cause, says that the disk is full."""
    if error is None or isinstance(error, DiffscopeError):  # it has been translated already
        return False
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    # safetensors and zarr have no error code, only a message.
    return full or "No space left on device" in str(error) or disk_is_full(error.__cause__ or error.__context__)


@contextmanager
def stop_on_full_disk(folder: Path) -> Iterator[None]:
    """Raise the error of a full disk, from any library, as a DiffscopeError of one line."""
    try:
        yield
    except Exception as error:  # safetensors has its own exception
        if not disk_is_full(error):
            raise
        raise DiffscopeError(
            f"no space is left for {folder}; what is complete stays there, and the same command resumes when there is space"
        ) from None
