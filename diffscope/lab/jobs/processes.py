"""Who does the work: this process, or processes of its own that end with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from threading import Thread
from typing import Protocol

import torch

from diffscope.errors import DiffscopeError
from diffscope.lab.jobs.job import Failure, Job


class Crew(Protocol):
    """Workers, numbered from 0, each of which does one job at a time."""

    size: int

    def give(self, member: int, job: Job) -> None:
        """Let an idle member begin."""

    def next(self) -> tuple[int, Failure | None]:
        """Wait until some member has done its job, or failed."""


@dataclass(frozen=True)
class Here:
    """Everything in this process, one piece after the other."""

    @contextmanager
    def crew(self, most: int) -> Iterator[Crew]:
        yield _Oneself()


class _Oneself:
    size = 1

    def give(self, member: int, job: Job) -> None:
        self._job = job

    def next(self) -> tuple[int, Failure | None]:
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
    def crew(self, most: int) -> Iterator[Crew]:
        members = [_Process(index if self.gpus else None) for index in range(min(self.count, most))]
        try:
            yield _Several(members)
        finally:
            for member in members:
                member.stop()


class _Several:
    def __init__(self, members: list[_Process]):
        self.members, self.size = members, len(members)

    def give(self, member: int, job: Job) -> None:
        self.members[member].give(job)

    def next(self) -> tuple[int, Failure | None]:
        while True:
            busy = {end: index for index, member in enumerate(self.members) if member.busy for end in member.ends}
            for end in connection.wait(list(busy)):
                done, failure = self.members[busy[end]].look()
                if done:
                    return busy[end], failure


class _Process:
    """One process, started anew after it has died."""

    def __init__(self, gpu: int | None):
        self.gpu = gpu
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")  # a fork would inherit torch's threads in whatever state they are
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.gpu), daemon=True)
        with _deaf():
            self.process.start()
        theirs.close()
        self.began = self.busy = False

    @property
    def ends(self) -> tuple:
        """What there is to wait for: its word, or its death."""
        return self.pipe, self.process.sentinel

    def give(self, job: Job) -> None:
        try:
            self.pipe.send(job)
        except OSError:  # it died while it had nothing to do
            self.stop()
            self._start()
            self.pipe.send(job)
        self.busy = True

    def look(self) -> tuple[bool, Failure | None]:
        """Whether its job is over, and what went wrong."""
        try:
            if not self.pipe.poll():
                raise EOFError
            failure = self.pipe.recv()
        except (EOFError, OSError):
            failure = self._died()
            self.stop()
            self._start()
            return True, failure
        first, self.began = not self.began, True  # its first word only says that it is there
        self.busy = first
        return not first, failure

    def _died(self) -> Failure:
        self.process.join()
        code = self.process.exitcode
        how = f"ended with status {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        if not self.began:
            raise DiffscopeError(f"a worker process {how} before it could begin; a script needs if __name__ == '__main__'")
        return Failure(f"its worker process {how}{'; was there memory enough?' if code < 0 else ''}")

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()
        self.process.close()


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started meanwhile do not hear Ctrl-C, which reaches all processes of a terminal: the first one decides."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: connection.Connection, gpu: int | None) -> None:
    """What a worker process does: one job after the other, until nobody asks for more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # there is one for all
    if gpu is not None and torch.cuda.is_available():
        torch.cuda.set_device(gpu % torch.cuda.device_count())
    with suppress(EOFError, OSError):  # the other end is closed
        pipe.send(None)
        while True:
            pipe.send(pipe.recv().attempt())


def _end_with_parent() -> None:
    connection.wait([parent_process().sentinel])
    os._exit(1)
