"""Executors: run jobs in this process, or in worker processes that end with it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import BaseContext
from threading import Thread
from typing import Protocol

import torch

from diffscope.errors import DiffscopeError
from diffscope.lab.jobs.job import Failure, Job

#: what takes a worker long to import, and begins no threads
PRELOADED = ["diffscope.lab.jobs.processes", "diffscope.families"]


class Executor(Protocol):
    """Workers, numbered from 0, each of which does one job at a time."""

    size: int

    def submit(self, worker: int, job: Job) -> None:
        """Let an idle worker begin a job."""

    def wait(self) -> tuple[int, Failure | None]:
        """Wait until some worker has done its job or failed; its number, and the failure if there is one."""


@dataclass(frozen=True)
class Here:
    """Everything in this process, one job after the other."""

    @contextmanager
    def executor(self, most: int) -> Iterator[Executor]:
        yield _Inline()


class _Inline:
    size = 1

    def submit(self, worker: int, job: Job) -> None:
        self._job = job

    def wait(self) -> tuple[int, Failure | None]:
        return 0, self._job.attempt()


@dataclass(frozen=True)
class Processes:
    """Processes of this machine, which end with this one even where it is killed.

    Parameters
    ----------
    count : int
    gpus : bool
        Make the GPUs of this machine, in turn, the current one of each.
    """

    count: int
    gpus: bool = False

    @contextmanager
    def executor(self, most: int) -> Iterator[Executor]:
        workers = [_Process(index if self.gpus else None) for index in range(min(self.count, most))]
        try:
            yield _Pool(workers)
        finally:
            for worker in workers:
                worker.stop()


class _Pool:
    def __init__(self, workers: list[_Process]):
        self.workers = workers
        self.size = len(workers)

    def submit(self, worker: int, job: Job) -> None:
        self.workers[worker].submit(job)

    def wait(self) -> tuple[int, Failure | None]:
        while True:
            busy = {end: index for index, worker in enumerate(self.workers) if worker.busy for end in worker.ends}
            for end in connection.wait(list(busy)):
                done, failure = self.workers[busy[end]].poll()
                if done:
                    return busy[end], failure


class _Process:
    """One worker process, which is replaced by a new one when it dies."""

    def __init__(self, gpu: int | None):
        self.gpu = gpu
        self._start()

    def _start(self) -> None:
        context = _context()
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.gpu, dict(os.environ)), daemon=True)
        with _block_sigint():
            self.process.start()
        theirs.close()
        self.began = False
        self.busy = False

    @property
    def ends(self) -> tuple:
        """What becomes ready when it sends something, and when it dies."""
        return self.pipe, self.process.sentinel

    def submit(self, job: Job) -> None:
        try:
            self.pipe.send(job)
        except OSError:  # it died while it had nothing to do
            self.stop()
            self._start()
            self.pipe.send(job)
        self.busy = True

    def poll(self) -> tuple[bool, Failure | None]:
        """Whether its job is over, and the failure if there is one."""
        try:
            if not self.pipe.poll():
                raise EOFError
            failure = self.pipe.recv()
        except (EOFError, OSError):
            failure = self._death()
            self.stop()
            self._start()
            return True, failure
        if not self.began:  # its first message only says that it is ready
            self.began = True
            return False, None
        self.busy = False
        return True, failure

    def _death(self) -> Failure:
        self.process.join()
        code = self.process.exitcode
        killed = code < 0
        how = f"was killed by {signal.Signals(-code).name}" if killed else f"ended with status {code}"
        if not self.began:
            raise DiffscopeError(f"a worker process {how} before it could begin; a script needs if __name__ == '__main__'")
        return Failure(f"its worker process {how}{'; was there memory enough?' if killed else ''}")

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()
        self.process.close()


def _context() -> BaseContext:
    """How workers begin: a fork of this process would inherit torch's threads in whatever state they are.

    On Linux they are forks of a process that has imported what takes long and has done nothing, so that ten of them are there as
    soon as one; elsewhere that is not safe.
    """
    if sys.platform != "linux":
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@contextmanager
def _block_sigint() -> Iterator[None]:
    """Start workers with SIGINT blocked: Ctrl-C reaches all processes of a terminal, and the first one decides."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: connection.Connection, gpu: int | None, environment: dict[str, str]) -> None:
    """The loop of a worker process: one job after the other, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)  # as it is now, not when the first worker began
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # the first process shows one for all
    if gpu is not None and torch.cuda.is_available():
        torch.cuda.set_device(gpu % torch.cuda.device_count())
    with suppress(EOFError, OSError):  # the other end is closed
        pipe.send(None)
        while True:
            pipe.send(pipe.recv().attempt())


def _end_with_parent() -> None:
    connection.wait([parent_process().sentinel])
    os._exit(1)
