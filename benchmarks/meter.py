"""Measure time and peak memory, in a process of its own if a method may fail or hold memory that others need."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from diffscope.attention.memory import free_memory, trim_heap
from diffscope.errors import MissingExtra, first_line

OK, WRONG, REFUSED, MEMORY, TIME, ABSENT = "ok", "wrong", "refused", "out of memory", "over time", "not installed"
POLL = 0.02  # seconds between two looks at a running process
LEAVE = 10.0  # seconds that an idle process has to end


class Measured(NamedTuple):
    """What some work returned and took: seconds of the clock and of the processor, and bytes above what was held before."""

    result: Any
    seconds: float
    processor: float
    peak: float


class Meter:
    """Clock and peak memory of a device, above what is held when the meter is made."""

    def __init__(self, device: str = "cpu"):
        gc.collect()
        trim_heap()
        self._cuda = torch.cuda if device.startswith("cuda") else None
        self._before = self._cuda.memory_allocated() if self._cuda else memory("VmRSS")

    def measure(self, work: Callable[[], Any]) -> Measured:
        """Run some work, and return what it took."""
        if self._cuda:
            self._cuda.synchronize()
            self._cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again from what is held now
        start, used = time.perf_counter(), time.process_time()
        result = work()
        if self._cuda:
            self._cuda.synchronize()
        seconds, processor = time.perf_counter() - start, time.process_time() - used
        peak = self._cuda.max_memory_allocated() if self._cuda else memory("VmHWM")
        return Measured(result, seconds, processor, peak - self._before)


def memory(name: str, pid: int | str = "self") -> float:
    """Return a figure of /proc/PID/status in bytes; 0 of a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0.0)


class Job(Protocol):
    """Prepares, in a process of its own, a run, and what picks from its result the part that is sent back."""

    def prepare(self) -> tuple[Callable[[], Any], Callable[[Any], Any]]: ...


@dataclass(frozen=True)
class Limits:
    """Limits of one run: seconds, and the share of the available memory that a process may take."""

    seconds: float = 120.0
    share: float = 0.85


@dataclass(frozen=True)
class Answer:
    """What came of one run: ``ok``, or why there is no result, with seconds and peak bytes as the meter measured them."""

    state: str
    why: str = ""
    seconds: float = float("nan")
    peak: float = float("nan")
    values: Any = None


class Child:
    """A process that prepares a job, and runs it whenever it is asked to.

    Parameters
    ----------
    job : Job
    device : str
        Whose memory and clock are measured.
    limits : Limits
    """

    def __init__(self, job: Job, device: str = "cpu", limits: Limits = Limits()):
        spawning = multiprocessing.get_context("spawn")
        self._connection, theirs = spawning.Pipe()
        self.limits = limits
        self._process = spawning.Process(target=_serve, args=(theirs, job, device), daemon=True)
        self._process.start()
        theirs.close()
        self.ready = self._answer()

    def run(self) -> Answer:
        """Run the job once; after a failure the process is gone."""
        if self.ready.state != OK:
            return self.ready
        try:
            self._connection.send(True)
        except BrokenPipeError:
            return self._stopped(REFUSED, "its process ended between two runs")
        return self._answer()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        self._connection.close()  # an idle process ends by itself
        self._process.join(LEAVE)
        self._process.kill()
        self._process.join()

    def _answer(self) -> Answer:
        pid, end = self._process.pid, time.monotonic() + self.limits.seconds
        allowed = memory("VmRSS", pid) + self.limits.share * free_memory(torch.device("cpu"))
        while not self._connection.poll(POLL):
            if memory("VmRSS", pid) > allowed:
                return self._stopped(MEMORY, f"over {allowed / 2**30:.1f} GiB")
            if time.monotonic() > end:
                return self._stopped(TIME, f"over {self.limits.seconds:.0f} s")
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            return self._stopped(MEMORY if code == -9 else REFUSED, f"its process ended with {code}")
        return answer if answer.state == OK else self._stopped(answer.state, answer.why)

    def _stopped(self, state: str, why: str) -> Answer:
        self._process.kill()
        self._process.join()
        return Answer(state, why)


def _serve(connection: Connection, job: Job, device: str) -> None:
    """Prepare a job, and run it until the other end is closed."""
    try:
        run, pick = job.prepare()
        meter = Meter(device)
        connection.send(Answer(OK))
        while connection.recv():
            result, seconds, _, peak = meter.measure(run)
            answer = Answer(OK, "", seconds, peak, None if result is None else pick(result))
            del result
            gc.collect()
            trim_heap()  # while others run, nothing is held
            connection.send(answer)
    except EOFError:
        return
    except Exception as problem:
        connection.send(Answer(_state_of(problem), f"{type(problem).__name__}: {first_line(problem)}"))


def _state_of(problem: Exception) -> str:
    """Return the word for what a job raised."""
    if isinstance(problem, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(problem):
        return MEMORY
    return ABSENT if isinstance(problem, ImportError | MissingExtra) else REFUSED
