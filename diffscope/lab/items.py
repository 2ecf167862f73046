"""Items of a queue: what each is, what became of it, the lock that it is made under, and the cause if it fails."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from diffscope.errors import DiffscopeError, first_line
from diffscope.storage.atomic import disk_is_full, remove, replacing, unfinished_folder, write_json

Work = Callable[[dict, Path], None]
FAILED_FOLDER = "failed"
LOCK_FOLDER = ".locks"
CAUSE = 300  # characters of a cause of failure
LOCKABLE = "give a folder that can be written, on a file system with flock (Lustre: mount it with -o flock)"
POLL = 0.2  # seconds between two looks at what other processes do
UNTOUCHED, DONE, FAILED, HELD = 0, -1, -2, -3  # states of an item in a run; a positive number is the worker that makes it


@dataclass(frozen=True)
class Item:
    """One piece of work.

    Attributes
    ----------
    place : str
        Path of its result below the folder of the queue. Items with the same place are the same item.
    spec : dict
        The argument of the work, as JSON knows it.
    """

    place: str
    spec: dict

    def result(self, folder: str | os.PathLike) -> Path:
        """Return the path of its result, which exists once it is complete."""
        return Path(folder) / self.place


@dataclass(frozen=True)
class Outcome:
    """The state of some items.

    Attributes
    ----------
    done : tuple of Item
    failed : dict of str to str
        By place, the cause in one line.
    waiting : tuple of Item
        Not tried yet, or being made.
    """

    done: tuple[Item, ...]
    failed: dict[str, str]
    waiting: tuple[Item, ...]

    @classmethod
    def of(cls, items: Sequence[Item], folder: str | os.PathLike) -> Outcome:
        """Read the outcome of items from the files of a folder."""
        done = tuple(item for item in items if item.result(folder).exists())
        places = {item.place for item in done}
        missing = [item for item in items if item.place not in places]
        failed = {}
        for item in missing:
            with suppress(FileNotFoundError):  # it never failed, or another run makes it just now
                failed[item.place] = json.loads(_record(item, folder).read_text(encoding="utf-8"))["cause"]
        return cls(done, failed, tuple(item for item in missing if item.place not in failed))


def clear_leftovers(item: Item, folder: Path) -> None:
    """Remove what a process left beside a result if it was killed just after it had moved the result to its place."""
    left = unfinished_folder(item.result(folder)), _record(item, folder)
    if any(path.exists() for path in left):
        with lock(folder, item.place, wait=False) as mine:
            for path in left if mine else ():
                remove(path)


def attempt(item: Item, work: Work, folder: Path, threads: int) -> int:
    """Make the result of an item whose lock this process holds; if that fails, write the cause.

    Returns
    -------
    int
        DONE or FAILED.
    """
    result = item.result(folder)
    try:
        result.parent.mkdir(parents=True, exist_ok=True)
        if not result.exists():
            with torch_threads(threads), replacing(result, alone=True) as target:
                work(item.spec, target)
    except Exception as error:  # the other items are still made, whatever goes wrong with one
        if disk_is_full(error):
            raise
        note_failure(folder, item, cause_of(error), "".join(traceback.format_exception(error)))
        return FAILED
    _record(item, folder).unlink(missing_ok=True)
    return DONE


def cause_of(error: Exception) -> str:
    """Return why something failed, in one line."""
    message = " ".join(str(error).split())
    if not message or not isinstance(error, DiffscopeError):
        message = f"{type(error).__name__}: {message}".removesuffix(": ")
    return message[:CAUSE]


def note_failure(folder: Path, item: Item, cause: str, details: str = "") -> None:
    """Write down why an item failed."""
    record = _record(item, folder)
    record.parent.mkdir(parents=True, exist_ok=True)
    write_json(record, {"cause": cause, "spec": item.spec, "details": details}, indent=1)


def _record(item: Item, folder: str | os.PathLike) -> Path:
    """Return where the cause of an item's failure is written."""
    return Path(folder) / FAILED_FOLDER / f"{item.place}.json"


@contextmanager
def lock(folder: str | os.PathLike, name: str, wait: bool = True) -> Iterator[bool]:
    """Hold a lock that all processes of a folder share, and yield whether it is held.

    The system releases it when its process ends, however that ends. Its file stays: to remove it would let two processes hold it.

    Raises DiffscopeError if the file system has no such locks, or the folder cannot be written.

    Parameters
    ----------
    wait : bool
        Whether to wait as long as another process holds it, a stopped one too, in place of yielding False.
    """
    path = Path(folder) / LOCK_FOLDER / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(path, timeout=-1 if wait else 0)
    try:
        held.acquire()
    except Timeout:
        yield False
        return
    except (OSError, NotImplementedError) as error:
        if disk_is_full(error):
            raise
        raise DiffscopeError(f"{path} cannot be locked ({first_line(error)}); {LOCKABLE}") from None
    if not isinstance(held, FileLock):  # filelock has fallen back to a file that a killed process would leave behind
        held.release()
        raise DiffscopeError(f"{path} cannot be locked (there is no flock); {LOCKABLE}")
    try:
        yield True
    finally:
        held.release()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run torch with `count` threads, then with as many as before: sums depend on how they are split."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
