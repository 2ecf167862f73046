"""A folder as a queue: each process takes the next item whose result is missing and whose lock is free.

A result appears under its name in one move, and one that exists is not made again. Beside the results lie only the causes of
failures (``failed/``) and empty lock files (``.locks/``). So work that was killed resumes when it is started again, and several
processes, on one machine or on many that share the folder, divide the items without knowing of each other.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import BaseContext
from pathlib import Path
from threading import Thread

import torch

from diffscope.errors import DiffscopeError
from diffscope.lab.items import (
    DONE,
    FAILED,
    POLL,
    UNTOUCHED,
    Item,
    Outcome,
    Work,
    attempt,
    clear_leftovers,
    lock,
    note_failure,
)
from diffscope.storage.atomic import disk_is_full, stop_on_full_disk

Progress = Callable[[int, int, str], None]


def run(
    items: Sequence[Item],
    work: Work,
    folder: str | os.PathLike,
    *,
    processes: int | None = None,
    ray: str | None = None,
    gpus: bool = False,
    threads: int = 1,
    progress: Progress | None = None,
) -> Outcome:
    """Make the results that do not exist yet, each once, and wait for those that another run is making.

    Parameters
    ----------
    items : sequence of Item
        A process takes them in this order: neighbours should share what takes long to load, such as a model.
    work : callable
        ``work(spec, target)`` writes one file or folder `target`, which is moved to its place when it is complete. A function
        of a module, or a ``functools.partial`` of one.
    folder : path
        On a file system that all processes share.
    processes : int, optional
        How many processes of this machine work; by default this one alone. With `ray`, the most items at once; by default as many
        as the cluster has room for.
    ray : str, optional
        Run the items as tasks of a Ray cluster: ``local``, ``auto`` or HOST:PORT, as of :mod:`diffscope.lab.ray_tasks`.
    gpus : bool
        Whether the work runs on CUDA. Then each process has the GPU of its number; this process alone, that of ``LOCAL_RANK``.
    threads : int
        Threads of torch for each item.
    progress : callable, optional
        Called with (items tried, items to try, a short note), first before any is tried.

    Returns
    -------
    Outcome
        The next run tries again what failed.

    Raises
    ------
    DiffscopeError
        The disk is full, files cannot be locked, or processes cannot be started. What is complete stays.
    """
    if processes is not None and processes < 1:
        raise DiffscopeError(f"processes = {processes} does no work; give 1 or more")
    folder = Path(folder).resolve()
    items = list({item.place: item for item in items}.values())
    with stop_on_full_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder, "queue", wait=False):  # if that is impossible, this process says so before any other begins
            pass
        todo = [item for item in items if not item.result(folder).exists()]
        for item in items:
            if item not in todo:
                clear_leftovers(item, folder)
        tell = partial(_tell, progress)
        tell([UNTOUCHED] * len(todo))
        make = partial(attempt, work=work, folder=folder, threads=threads)
        if ray is not None and todo:
            from diffscope.lab.ray_tasks import run_on_ray

            run_on_ray(todo, make, folder, ray, processes, gpus, threads, tell)
        elif processes is not None and todo:
            _run_in_processes(todo, make, folder, min(processes, len(todo)), gpus, tell)
        elif todo:
            with _current_gpu(int(os.environ.get("LOCAL_RANK", 0)) if gpus else None):
                _walk(todo, make, folder, [UNTOUCHED] * len(todo), tell=tell)
    return Outcome.of(items, folder)


def _tell(progress: Progress | None, state: Sequence[int]) -> None:
    """Report how many items have ended, and how many of them failed."""
    if progress:
        failed = sum(each == FAILED for each in state)
        ended = failed + sum(each == DONE for each in state)
        progress(ended, len(state), f"({failed} failed)" if failed else "")


def _walk(
    todo: Sequence[Item],
    make: Callable[[Item], int],
    folder: Path,
    state: MutableSequence[int],
    worker: int = 1,
    offset: int = 0,
    tell: Callable[[Sequence[int]], None] | None = None,
) -> None:
    """Make one result after the other, beginning at `offset`, until each item has been tried by one of the workers.

    Parameters
    ----------
    state : sequence of int (item,)
        Shared by the workers of this run; it changes under the item's lock, so that none is tried twice.
    """
    left = [*range(offset, len(todo)), *range(offset)]
    while left:
        for index in left:
            if state[index] == UNTOUCHED:
                with lock(folder, todo[index].place, wait=False) as mine:
                    if mine and state[index] == UNTOUCHED:
                        state[index] = worker
                        state[index] = make(todo[index])
                if tell:
                    tell(state)
        left = [index for index in left if state[index] == UNTOUCHED]  # another run has their locks
        if left:
            time.sleep(POLL)


# Several processes of this machine


def _run_in_processes(
    todo: Sequence[Item],
    make: Callable[[Item], int],
    folder: Path,
    count: int,
    gpus: bool,
    tell: Callable[[Sequence[int]], None],
) -> None:
    """Let processes walk through the items, each from its own offset; one that dies costs its item and is replaced.

    Raises DiffscopeError if a process ended before it could begin, and OSError if the disk is full.
    """
    context = _context()
    state = context.RawArray("i", len(todo))
    running = {}

    def start(worker: int) -> None:
        offset = (worker - 1) * len(todo) // count
        walk = partial(_walk, todo, make, folder, state, worker, offset)
        process = context.Process(target=_serve, args=(walk, worker - 1 if gpus else None), daemon=True)
        process.start()
        running[process.sentinel] = worker, process

    how = ""
    try:
        for worker in range(1, count + 1):
            start(worker)
        while running:
            for sentinel in connection.wait(list(running), POLL):
                worker, process = running.pop(sentinel)
                process.join()
                if process.exitcode == errno.ENOSPC:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if process.exitcode:
                    how = _end_in_words(process.exitcode)
                    lost = [index for index, has in enumerate(state) if has == worker]
                    for index in lost:  # one, or none if it could not begin
                        note_failure(folder, todo[index], f"its process {how}")
                        state[index] = FAILED
                    if lost:
                        start(worker)
            tell(state)
    finally:
        for _, process in running.values():
            process.kill()
            process.join()
    if UNTOUCHED in list(state):
        raise DiffscopeError(f"a worker process {how} before it could begin; a script needs if __name__ == '__main__'")


def _end_in_words(code: int) -> str:
    if code > 0:
        return f"ended with status {code}"
    return f"was killed by {signal.Signals(-code).name}; was there memory enough?"


def _context() -> BaseContext:
    """Return how processes are started: on Linux as forks of one that has imported the slow modules."""
    if sys.platform != "linux":
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["diffscope.lab.queue", "diffscope.families"])
    return context


def _serve(walk: Callable[[], None], gpu: int | None) -> None:
    """Walk through the items in a worker process, and end with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the first one decides
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        with _current_gpu(gpu):
            walk()
    except Exception as error:
        if disk_is_full(error):
            sys.exit(errno.ENOSPC)
        raise


def _end_with_parent() -> None:
    """End this process when its parent ends, even if that is killed."""
    connection.wait([parent_process().sentinel])
    os._exit(1)


@contextmanager
def _current_gpu(number: int | None) -> Iterator[None]:
    """Make GPU `number`, modulo the GPUs of this machine, the one that "cuda" means."""
    if number is None or not torch.cuda.is_available():
        yield
        return
    with torch.cuda.device(number % torch.cuda.device_count()):
        yield
