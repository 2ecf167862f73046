"""Threads that work on blocks of rows side by side, each on one core and with memory of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from diffscope.attention.memory import Workspace, borrowed

T = TypeVar("T")
AHEAD = 2  # tasks a worker may be ahead of the one whose result is next


class Workers:
    """A context manager; within it :meth:`run` gives results in the order of the tasks.

    So sums over them do not depend on which thread was faster.

    Two blocks on two cores are faster than one block whose every operation is split in two, and do not suffer when something
    else needs a core for a while.

    Parameters
    ----------
    count : int, optional
        Threads; by default as many as torch would use for one operation. With one, everything runs in the calling thread.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count or torch.get_num_threads()
        self._local = threading.local()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def run(self, tasks: Iterable[Callable[[Workspace], T]], alone: bool = False) -> Iterator[T]:
        """Results of the tasks in their order.

        Parameters
        ----------
        tasks : iterable of callables
            Each is given the workspace of the thread that it runs in.
        alone : bool
            Whether to stay in this thread: on a GPU, or where there is too little to do.
        """
        if alone or self.count == 1:
            with borrowed() as workspace:
                yield from (task(workspace) for task in tasks)
            return
        self._pool = self._pool or self._start()
        running: deque[Future[T]] = deque()
        for task in tasks:
            running.append(self._pool.submit(self._within, task))
            if len(running) >= AHEAD * self.count:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()

    def _within(self, task: Callable[[Workspace], T]) -> T:
        if not hasattr(self._local, "workspace"):
            self._local.workspace = Workspace()
        with torch.no_grad():  # a thread starts with gradients on
            return task(self._local.workspace)

    def _start(self) -> ThreadPoolExecutor:
        """Threads in which torch uses one core. Setting that also sets what threads to come will use, which is put back."""
        pool = ThreadPoolExecutor(self.count)
        started = threading.Barrier(self.count)
        before = torch.get_num_threads()

        def single() -> None:
            torch.get_num_threads()  # a thread's first question makes it take over what is set for all, and never again
            torch.set_num_threads(1)
            started.wait()

        for ready in [pool.submit(single) for _ in range(self.count)]:
            ready.result()
        torch.set_num_threads(before)
        return pool
