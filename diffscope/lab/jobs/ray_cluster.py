"""A Ray cluster as a crew: actors that hold one model each and share a file system."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from diffscope.errors import DiffscopeError, MissingExtra
from diffscope.lab.jobs.job import Failure, Job
from diffscope.lab.jobs.processes import Crew


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
    def crew(self, most: int) -> Iterator[Crew]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what will change in Ray
            ray = _ray()
            with self._connected(ray):
                crew = _Actors(ray, self._size(ray, most), self.gpus)
                try:
                    yield crew
                finally:
                    crew.stop()

    def _size(self, ray, most: int) -> int:
        there = int(ray.cluster_resources().get("GPU" if self.gpus else "CPU", 0))
        if there < 1:
            raise DiffscopeError(f"the Ray cluster at {self.address!r} has no {'GPU' if self.gpus else 'processor'} to work on")
        return min(self.count or there, there, most)

    @contextmanager
    def _connected(self, ray) -> Iterator[None]:
        if ray.is_initialized():  # by whoever called, whose it stays
            yield
            return
        own = dict(num_cpus=self.count, include_dashboard=False) if self.address == "local" else {}
        try:
            if ":" in self.address:  # Ray itself would go on trying for minutes
                host, _, port = self.address.removeprefix("ray://").rpartition(":")
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address=self.address, log_to_driver=False, logging_level="ERROR", configure_logging=False, **own)
        except Exception as error:  # Ray may raise anything
            said = _first_line(error)
            raise DiffscopeError(f"no Ray cluster at {self.address!r} ({said}); start one with: ray start --head") from None
        try:
            yield
        finally:
            ray.shutdown()


class _Actors:
    def __init__(self, ray, size: int, gpus: bool):
        self.ray, self.size = ray, size
        self._hire = ray.remote(num_cpus=1, num_gpus=int(gpus))(_Actor).remote
        self.actors, self.jobs = [self._hire() for _ in range(size)], {}

    def give(self, member: int, job: Job) -> None:
        self.jobs[self.actors[member].attempt.remote(job)] = member

    def next(self) -> tuple[int, Failure | None]:
        (done,), _ = self.ray.wait(list(self.jobs), num_returns=1)
        member = self.jobs.pop(done)
        try:
            return member, self.ray.get(done)
        except self.ray.exceptions.RayError as error:
            self.actors[member] = self._hire()
            return member, Failure(f"its Ray worker died ({_first_line(error)})")

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


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:160]
