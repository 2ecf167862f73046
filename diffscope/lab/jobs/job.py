"""One piece of work: done wholly or not at all, by one process at a time, with what went wrong kept in one line."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from diffscope.errors import DiffscopeError

try:
    from fcntl import LOCK_EX, lockf
except ImportError:  # Windows
    lockf = None

Work = Callable[[dict, Path], None]
CAUSE = 300  # characters


class Failure(NamedTuple):
    """Why a piece of work was not done."""

    cause: str  # in one line
    details: str = ""
    disk_full: bool = False

    @classmethod
    def of(cls, error: Exception) -> Failure:
        said, kind = " ".join(str(error).split()), type(error).__name__
        cause = said if said and isinstance(error, DiffscopeError) else f"{kind}: {said}" if said else kind
        return cls(cause[:CAUSE], "".join(traceback.format_exception(error)), disk_is_full(error))


def disk_is_full(error: BaseException | None) -> bool:
    """Whether an exception, or one that it came from, says that nothing more can be written."""
    if error is None or isinstance(error, DiffscopeError):  # which has been put into words already
        return False
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    # safetensors tells it in words only.
    return full or "No space left on device" in str(error) or disk_is_full(error.__cause__ or error.__context__)


@dataclass(frozen=True)
class Job:
    """``work(spec, target)`` is to make the file or folder `final`, with so many threads of torch."""

    work: Work
    spec: dict
    final: Path
    threads: int

    def attempt(self) -> Failure | None:
        """Do it, in whichever process this is; what is there already is not done again."""
        try:
            if not self.final.parent.is_dir():
                raise DiffscopeError(f"a worker does not see {self.final.parent}; all of them have to share its file system")
            with alone(self.final), threads(self.threads):
                if not self.final.exists():
                    self._do()
        except Exception as error:  # whatever goes wrong with one piece, the others go on
            return Failure.of(error)

    def _do(self) -> None:
        place = unfinished(self.final)  # a folder, so that whatever else the work writes beside its target goes with it
        remove(place)  # left by a run that was killed: this process alone is at it
        place.mkdir()
        try:
            self.work(self.spec, place / self.final.name)
            os.replace(place / self.final.name, self.final)
        finally:
            remove(place)


def unfinished(final: Path) -> Path:
    """Where a result is until it is complete."""
    return final.with_name(f".unfinished-{final.name}")


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


@contextmanager
def alone(final: Path) -> Iterator[None]:
    """Hold the only right to make `final` among all processes that share its folder; whoever is killed lets go of it.

    What is locked is one byte of one file for all, so that nothing is left behind for each.
    """
    byte = int.from_bytes(hashlib.sha256(final.name.encode()).digest()[:7])
    with open(final.with_name(".lock"), "ab") as file:
        try:
            if lockf:
                lockf(file, LOCK_EX, 1, byte)
        except OSError:  # a file system without locks: two runs at once may then do a piece twice, with the same result
            pass
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads of torch while it is open: sums depend on how they are split."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
