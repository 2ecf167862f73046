"""Shards: pure pieces of work, each done once, in whichever process; a result that exists is complete and is not made again.

A folder holds the results, ``shards/ID.SUFFIX`` or where a shard says, each of which appears under its name in one move, and
``failed/ID.json``, the causes of failures. There is no other state, so a run that was killed goes on by being started again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from diffscope.errors import DiffscopeError
from diffscope.files import remove, unfinished_folder, write_json
from diffscope.lab.jobs.job import Failure, Job, Work, disk_is_full
from diffscope.lab.jobs.processes import Executor, Here

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Shard:
    """One piece of work.

    Attributes
    ----------
    spec : dict
        All that its result depends on, as JSON knows it.
    affinity : str
        Shards with the same key go to the same worker, which keeps what they share, such as a model, loaded.
    place : str
        Where its result lies in the folder, without the suffix; by default ``shards/ID``. Two shards of a folder that differ must
        not have the same place.
    """

    spec: dict
    affinity: str = field(default="", compare=False)
    place: str = field(default="", compare=False)

    @cached_property
    def id(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the spec as canonical JSON."""
        text = json.dumps(self.spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Outcome:
    """Which of some shards are done in a folder.

    Attributes
    ----------
    done : tuple of Shard
    failed : dict of str to str
        By id, the cause in one line.
    waiting : tuple of Shard
        Not tried yet: the shards of other ranks, for example.
    """

    done: tuple[Shard, ...]
    failed: dict[str, str]
    waiting: tuple[Shard, ...]

    @classmethod
    def of(cls, shards: Sequence[Shard], folder: Path, suffix: str) -> Outcome:
        done = [shard for shard in shards if result(folder, shard, suffix).exists()]
        ids = {shard.id for shard in done}
        missing = [shard for shard in shards if shard.id not in ids]
        causes = {shard.id: _cause(folder, shard) for shard in missing}
        failed = {id: cause for id, cause in causes.items() if cause is not None}
        return cls(tuple(done), failed, tuple(shard for shard in missing if shard.id not in failed))


@dataclass(frozen=True)
class Rank:
    """One of several runs that share the work: number `index` of `world` does every `world`-th shard."""

    index: int = 0
    world: int = 1
    local: int = 0  # its number on its machine, which decides its GPU

    def __post_init__(self):
        if not 0 <= self.index < self.world:
            raise DiffscopeError(f"there is no rank {self.index} of {self.world}; ranks are 0 to {self.world - 1}")

    @classmethod
    def of(cls, text: str, environment: Mapping[str, str] = os.environ) -> Rank:
        """The rank that ``--rank`` names: ``I/N``, or ``auto`` for the one that torchrun or Slurm puts into the environment.

        For torchrun it is RANK of WORLD_SIZE; for Slurm the task of a job array, and within it the task of srun.

        Raises
        ------
        DiffscopeError
            The text is neither, the environment has no rank, or the numbers of a job array are not evenly spaced.
        """
        if text != "auto":
            index, _, world = text.partition("/")
            if not (index.isdigit() and world.isdigit()):
                raise DiffscopeError(f"--rank {text!r} is neither auto nor RANK/WORLD, such as 0/8")
            return cls(int(index), int(world))
        number = {name: int(value) for name, value in environment.items() if name in _VARIABLES and value.isdigit()}
        if {"RANK", "WORLD_SIZE"} <= number.keys():
            return cls(number["RANK"], number["WORLD_SIZE"], number.get("LOCAL_RANK", 0))
        if not {"SLURM_ARRAY_TASK_ID", "SLURM_PROCID"} & number.keys():
            raise DiffscopeError("--rank auto finds no rank of torchrun or Slurm in the environment; say it: --rank 0/8")
        index, world = _array_task(number)
        tasks = number.get("SLURM_STEP_NUM_TASKS", 1)  # of srun; SLURM_NTASKS is there in a batch script too, which is one task
        return cls(index * tasks + number.get("SLURM_PROCID", 0), world * tasks, number.get("SLURM_LOCALID", 0))


def own_gpu(device: str, rank: Rank | None) -> str:
    """The GPU of a rank, where several on one machine see all of its GPUs."""
    count = torch.cuda.device_count() if device == "cuda" and rank else 0
    return f"cuda:{rank.local % count}" if count else device


_ARRAY = tuple(f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "STEP", "COUNT"))
_VARIABLES = {*_ARRAY, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "RANK", "WORLD_SIZE", "LOCAL_RANK"}


def _array_task(number: Mapping[str, int]) -> tuple[int, int]:
    """The task of a job array, counted from 0, and how many tasks it has."""
    if "SLURM_ARRAY_TASK_ID" not in number:
        return 0, 1
    task, first, last, step, count = (number.get(name, 1 if name.endswith("STEP") else None) for name in _ARRAY)
    if None in (first, last, count) or (last - first) // step + 1 != count:
        raise DiffscopeError("the numbers of this job array are not evenly spaced; say the rank: --rank I/N")
    return (task - first) // step, count


def result(folder: Path, shard: Shard, suffix: str) -> Path:
    """Where a shard's result is, once it is complete."""
    return Path(folder) / f"{shard.place or f'shards/{shard.id}'}{suffix}"


def run(
    shards: Sequence[Shard],
    work: Work,
    folder: str | os.PathLike,
    where=None,
    *,
    rank: Rank | None = None,
    suffix: str = ".nc",
    threads: int = 1,
    progress: Progress | None = None,
) -> Outcome:
    """Make the results that do not exist yet.

    Parameters
    ----------
    shards : sequence of Shard
    work : callable
        ``work(spec, target)`` makes one file or folder called `target`, which gets its own name when it is complete. A function
        of a module, or a ``functools.partial`` of one. Long work that can go on where it was stopped keeps what it needs for
        that in a folder of its own, and makes `target`, a summary perhaps, at the end.
    folder : path
        On a file system that all workers share.
    where : Here, Processes or OnRay, optional
        Of ``diffscope.lab.jobs.processes`` and ``diffscope.lab.jobs.ray_cluster``; by default this process.
    rank : Rank, optional
        Which part of the shards this run does; by default all.
    suffix : str
        Of the results.
    threads : int
        Of torch, in whichever process a shard is done; afterwards this process has as many as before.
    progress : callable, optional
        Called with (shards tried, shards to try, a short note), first before any is tried.

    Returns
    -------
    Outcome
        Of all shards, those of other ranks too. The next run tries again what failed.

    Raises
    ------
    DiffscopeError
        The disk is full, or workers cannot be started. What is complete is kept.
    """
    folder = Path(folder).resolve()
    rank = rank or Rank()
    unique = list({shard.id: shard for shard in shards}.values())
    with telling_full_disk(folder):
        (folder / "failed").mkdir(parents=True, exist_ok=True)
        todo = [shard for shard in unique[rank.index :: rank.world] if not result(folder, shard, suffix).exists()]
        jobs = {shard.id: Job(work, shard.spec, result(folder, shard, suffix), threads) for shard in todo}
        if todo:
            with (where or Here()).executor(len(todo)) as executor:
                _work_off(executor, todo, jobs, folder, progress)
    return Outcome.of(unique, folder, suffix)


def _work_off(executor: Executor, todo: list[Shard], jobs: dict[str, Job], folder: Path, progress: Progress | None) -> None:
    """Keep all workers busy until no shard is left."""
    total = len(todo)
    tried = 0
    failed = 0
    running = {}
    idle = list(range(executor.size))
    affinities = [""] * executor.size  # of the shard that each worker did last
    if progress:
        progress(0, total, "")
    while todo or running:
        while todo and idle:
            worker = idle.pop(0)
            shard = todo.pop(_next_for(affinities[worker], todo, affinities))
            running[worker] = shard
            affinities[worker] = shard.affinity
            jobs[shard.id].final.parent.mkdir(parents=True, exist_ok=True)
            executor.submit(worker, jobs[shard.id])
        worker, failure = executor.wait()
        shard = running.pop(worker)
        idle.append(worker)
        _note_failure(folder, shard, failure)
        tried += 1
        if failure is not None:
            failed += 1
        if progress:
            progress(tried, total, f"({failed} failed)" if failed else "")


def _next_for(affinity: str, todo: list[Shard], affinities: list[str]) -> int:
    """Index of a worker's next shard: one of its affinity, else one of an affinity that no worker has, else the first."""
    same = (index for index, shard in enumerate(todo) if shard.affinity == affinity)
    new = (index for index, shard in enumerate(todo) if shard.affinity not in affinities)
    return next(same, next(new, 0))


def _note_failure(folder: Path, shard: Shard, failure: Failure | None) -> None:
    """Write down the cause of a failure, or remove that of an earlier one; a full disk ends the run."""
    path = folder / "failed" / f"{shard.id}.json"
    if failure is None:
        path.unlink(missing_ok=True)
        remove(unfinished_folder(path))
        return
    if failure.disk_full:
        raise OSError(errno.ENOSPC, failure.cause)
    record = {"cause": failure.cause, "spec": shard.spec, "details": failure.details}
    write_json(path, record, indent=1, alone=True)


def _cause(folder: Path, shard: Shard) -> str | None:
    try:
        return json.loads((folder / "failed" / f"{shard.id}.json").read_text(encoding="utf-8"))["cause"]
    except FileNotFoundError:
        return None


@contextmanager
def telling_full_disk(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk, whichever library raises it, into one line."""
    try:
        yield
    except Exception as error:  # safetensors has an exception of its own
        if not disk_is_full(error):
            raise
        raise DiffscopeError(
            f"no space is left for {folder}; what is complete is kept, and the same command goes on when there is space"
        ) from None
