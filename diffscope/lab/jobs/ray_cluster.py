"""A Ray cluster as an executor: actors that hold one model each and share a file system."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from diffscope.errors import DiffscopeError, MissingExtra, first_line
from diffscope.lab.jobs.job import Failure, Job
from diffscope.lab.jobs.processes import Executor


@dataclass(frozen=True)
class OnRay:
    """Actors of a Ray cluster.

    Parameters
    ----------
    address : str
        ``local`` starts a cluster on this machine for as long as the work takes, ``auto`` finds one that runs already, or
        HOST:PORT.
    count : int, optional
        Actors; by default one a processor or, with `gpus`, one a GPU.
    gpus : bool
        Whether each has a GPU for itself.
    """

    address: str = "local"
    count: int | None = None
    gpus: bool = False

    @contextmanager
    def executor(self, most: int) -> Iterator[Executor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what will change in Ray
            ray = _ray()
            with self._connected(ray):
                actors = _Actors(ray, self._size(ray, most), self.gpus)
                try:
                    yield actors
                finally:
                    actors.stop()

    def _size(self, ray, most: int) -> int:
        available = int(ray.cluster_resources().get("GPU" if self.gpus else "CPU", 0))
        if available < 1:
            raise DiffscopeError(f"the Ray cluster at {self.address!r} has no {'GPU' if self.gpus else 'processor'} to work on")
        return min(self.count or available, available, most)

    @contextmanager
    def _connected(self, ray) -> Iterator[None]:
        if ray.is_initialized():  # by the caller, whose connection it stays
            yield
            return
        options = dict(num_cpus=self.count, include_dashboard=False) if self.address == "local" else {}
        try:
            if ":" in self.address:  # Ray itself would go on trying for minutes
                host, _, port = self.address.removeprefix("ray://").rpartition(":")
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address=self.address, log_to_driver=False, logging_level="ERROR", configure_logging=False, **options)
        except Exception as error:  # Ray may raise anything
            reason = first_line(error)
            raise DiffscopeError(f"no Ray cluster at {self.address!r} ({reason}); start one with: ray start --head") from None
        try:
            yield
        finally:
            ray.shutdown()


class _Actors:
    def __init__(self, ray, size: int, gpus: bool):
        self.ray = ray
        self.size = size
        self._start_actor = ray.remote(num_cpus=1, num_gpus=int(gpus))(_Actor).remote
        self.actors = [self._start_actor() for _ in range(size)]
        self.running = {}  # Ray's reference to a result → number of the worker

    def submit(self, worker: int, job: Job) -> None:
        self.running[self.actors[worker].attempt.remote(job)] = worker

    def wait(self) -> tuple[int, Failure | None]:
        (reference,), _ = self.ray.wait(list(self.running), num_returns=1)
        worker = self.running.pop(reference)
        try:
            return worker, self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            self.actors[worker] = self._start_actor()
            return worker, Failure(f"its Ray worker died ({first_line(error)})")

    def stop(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)


class _Actor:
    def attempt(self, job: Job) -> Failure | None:
        return job.attempt()


def _ray():
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(
            f"ray is needed and cannot be imported ({error}); pip install 'diffscope-attention[cluster]'"
        ) from None
    return ray
