"""The items of a queue as tasks of a Ray cluster, whose machines share the folder."""

from __future__ import annotations

import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from diffscope.errors import DiffscopeError, MissingExtra, first_line
from diffscope.lab.items import FAILED, HELD, POLL, UNTOUCHED, Item, cause_of, lock, note_failure
from diffscope.storage.atomic import disk_is_full


def run_on_ray(
    todo: Sequence[Item],
    make: Callable[[Item], int],
    folder: Path,
    address: str,
    processes: int | None,
    gpus: bool,
    threads: int,
    tell: Callable[[Sequence[int]], None],
) -> None:
    """Run each item as one Ray task, with a processor for each of its threads and, if `gpus`, a GPU.

    Raises DiffscopeError if there is no such cluster, it has nothing to work on, or a task found the disk full.

    Parameters
    ----------
    todo, make, folder, tell
        As in :func:`diffscope.lab.queue.run`.
    address : str
        ``local`` starts a cluster on this machine for as long as the work takes, ``auto`` finds one that runs already, or
        HOST:PORT.
    processes : int, optional
        The most tasks at once; by default as many as the cluster has room for.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what will change in Ray
        ray = _import_ray()
        with _connected(ray, address, processes and processes * threads):
            size = _room(ray, address, gpus, threads)
            task = ray.remote(num_cpus=threads, num_gpus=int(gpus), max_retries=0)(_task)
            _submit(ray, lambda item: task.remote(item, make, folder), todo, folder, min(processes or size, size), tell)


def _submit(
    ray,
    start: Callable[[Item], object],
    todo: Sequence[Item],
    folder: Path,
    size: int,
    tell: Callable[[Sequence[int]], None],
) -> None:
    """Keep as many tasks as there is room for under way until all items have been tried."""
    waiting = deque(enumerate(todo))
    state = [UNTOUCHED] * len(todo)
    running = {}
    while waiting or running:
        while waiting and len(running) < size:
            index, item = waiting.popleft()
            running[start(item)] = index, item
        (ended,), _ = ray.wait(list(running), num_returns=1)
        index, item = running.pop(ended)
        try:
            state[index] = ray.get(ended)
        except ray.exceptions.RayTaskError as error:  # an exception of the task itself, a full disk for example
            cause = error.cause if isinstance(error.cause, Exception) else error
            if disk_is_full(cause):
                raise cause from None
            note_failure(folder, item, cause_of(cause))
            state[index] = FAILED
        except ray.exceptions.RayError as error:
            note_failure(folder, item, f"its Ray worker died ({first_line(error)})")
            state[index] = FAILED
        if state[index] == HELD:  # another run makes it, or is killed and leaves it
            state[index] = UNTOUCHED
            waiting.append((index, item))
            time.sleep(POLL)
        tell(state)


def _task(item: Item, make: Callable[[Item], int], folder: Path) -> int:
    """Make one result in a worker of the cluster, unless another run makes it."""
    if not folder.is_dir():
        raise DiffscopeError(f"a worker on {socket.gethostname()} does not see {folder}; all have to share its file system")
    with lock(folder, item.place, wait=False) as mine:
        return make(item) if mine else HELD


def _room(ray, address: str, gpus: bool, threads: int) -> int:
    """Return how many tasks the cluster has room for at once."""
    name, each = ("GPU", 1) if gpus else ("CPU", threads)
    room = int(ray.cluster_resources().get(name, 0)) // each
    if room < 1:
        raise DiffscopeError(f"the Ray cluster at {address!r} has no {'GPU' if gpus else f'{threads} processors'} to work on")
    return room


@contextmanager
def _connected(ray, address: str, processors: int | None) -> Iterator[None]:
    """Connect to a cluster, or leave the caller's connection as it is."""
    if ray.is_initialized():
        yield
        return
    options = dict(num_cpus=processors, include_dashboard=False) if address == "local" else {}
    try:
        if ":" in address:  # Ray itself would try for minutes
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False, **options)
    except Exception as error:  # Ray may raise anything
        reason = first_line(error)
        raise DiffscopeError(f"no Ray cluster at {address!r} ({reason}); start one with: ray start --head") from None
    try:
        yield
    finally:
        ray.shutdown()


def _import_ray():
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(
            f"ray is needed and cannot be imported ({error}); pip install 'diffscope-attention[cluster]'"
        ) from None
    return ray
