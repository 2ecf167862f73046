"""A job: one result, made wholly or not at all, by one process at a time; a failure is told in one line."""

from __future__ import annotations

import errno
import hashlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from diffscope.errors import DiffscopeError
from diffscope.files import replacing

try:
    from fcntl import LOCK_EX, lockf
except ImportError:  # Windows
    lockf = None

Work = Callable[[dict, Path], None]
CAUSE = 300  # characters


class Failure(NamedTuple):
    """Why a job failed."""

    cause: str  # in one line
    details: str = ""
    disk_full: bool = False

    @classmethod
    def of(cls, error: Exception) -> Failure:
        message = " ".join(str(error).split())
        cause = message
        if not message or not isinstance(error, DiffscopeError):
            cause = f"{type(error).__name__}: {message}".removesuffix(": ")
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
    """``work(spec, target)`` makes the file or folder `final`, with `threads` threads of torch."""

    work: Work
    spec: dict
    final: Path
    threads: int

    def attempt(self) -> Failure | None:
        """Do it in this process, unless its result exists already."""
        try:
            if not self.final.parent.is_dir():
                raise DiffscopeError(f"a worker does not see {self.final.parent}; all of them have to share its file system")
            with locked(self.final), torch_threads(self.threads):
                if not self.final.exists():
                    with replacing(self.final, alone=True) as target:
                        self.work(self.spec, target)
        except Exception as error:  # whatever goes wrong with one job, the others go on
            return Failure.of(error)


@contextmanager
def locked(final: Path) -> Iterator[None]:
    """Hold the lock of `final` among all processes that share its folder; a process that is killed lets go of it.

    What is locked is one byte of one file for all results of a folder, so that no lock file is left behind for each.
    """
    byte = int.from_bytes(hashlib.sha256(final.name.encode()).digest()[:7])
    with open(final.with_name(".lock"), "ab") as file:
        try:
            if lockf:
                lockf(file, LOCK_EX, 1, byte)
        except OSError:  # a file system without locks: two runs at once may then do a job twice, with the same result
            pass
        yield


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run torch with `count` threads, then with as many as before: sums depend on how they are split."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
