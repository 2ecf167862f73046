"""Pure pieces of work, each done once, wherever it is done: what is there is complete, and is not done again.

A folder holds ``shards/ID.SUFFIX``, the results, each of which appears under its name in one move, and ``failed/ID.json``, the
causes of what went wrong. Nothing else is remembered, so a run that was killed goes on by being started again.
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
from diffscope.lab.jobs.job import Failure, Job, Work, disk_is_full, unfinished
from diffscope.lab.jobs.processes import Crew, Here

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Shard:
    """One piece of work.

    Attributes
    ----------
    spec : dict
        All that its result depends on, as JSON knows it.
    kin : str
        Shards of one name share what is costly to prepare, such as a model; a worker stays with them as long as there are any.
    """

    spec: dict
    kin: str = field(default="", compare=False)

    @cached_property
    def id(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the spec as canonical JSON."""
        text = json.dumps(self.spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Outcome:
    """What a folder holds of some shards.

    Attributes
    ----------
    done : tuple of Shard
    failed : dict of str to str
        By id, the cause in one line.
    waiting : tuple of Shard
        What nobody has tried yet: the shards of other ranks, for example.
    """

    done: tuple[Shard, ...]
    failed: dict[str, str]
    waiting: tuple[Shard, ...]

    @classmethod
    def of(cls, shards: Sequence[Shard], folder: Path, suffix: str) -> Outcome:
        done = [shard for shard in shards if result(folder, shard, suffix).exists()]
        there = {shard.id for shard in done}
        missing = [shard for shard in shards if shard.id not in there]
        causes = {shard.id: _cause(folder, shard) for shard in missing}
        failed = {id: cause for id, cause in causes.items() if cause is not None}
        return cls(tuple(done), failed, tuple(shard for shard in missing if shard.id not in failed))


@dataclass(frozen=True)
class Rank:
    """One of several runs that share the work: number `index` of `world` does every `world`-th shard."""

    index: int = 0
    world: int = 1
    local: int = 0  # its number on its machine, which says which GPU is its own

    def __post_init__(self):
        if not 0 <= self.index < self.world:
            raise DiffscopeError(f"there is no rank {self.index} of {self.world}; ranks are 0 to {self.world - 1}")

    @classmethod
    def of(cls, said: str, environment: Mapping[str, str] = os.environ) -> Rank:
        """What ``--rank`` says: ``I/N``, or ``auto`` for what torchrun or Slurm has put into the environment.

        Of torchrun RANK of WORLD_SIZE; of Slurm the task of a job array, and within it the task of srun.

        Raises
        ------
        DiffscopeError
            It is neither, nothing is in the environment, or an array whose numbers are not evenly spaced.
        """
        if said != "auto":
            index, _, world = said.partition("/")
            if not (index.isdigit() and world.isdigit()):
                raise DiffscopeError(f"--rank {said!r} is neither auto nor RANK/WORLD, such as 0/8")
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
    """Which task of a job array this is, counted from 0, and of how many."""
    if "SLURM_ARRAY_TASK_ID" not in number:
        return 0, 1
    task, first, last, step, count = (number.get(name, 1 if name.endswith("STEP") else None) for name in _ARRAY)
    if None in (first, last, count) or (last - first) // step + 1 != count:
        raise DiffscopeError("the numbers of this job array are not evenly spaced; say the rank: --rank I/N")
    return (task - first) // step, count


def result(folder: Path, shard: Shard, suffix: str) -> Path:
    """Where a shard's result is, once it is complete."""
    return Path(folder) / "shards" / f"{shard.id}{suffix}"


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
    """Do what is not done yet.

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
        Which part of the shards is this run's.
    suffix : str
        Of the results.
    threads : int
        Of torch, for each piece of work wherever it is done; what it was here before is set again.
    progress : callable, optional
        Called with (shards tried, shards to try, a short note), first before any is tried.

    Returns
    -------
    Outcome
        Of all shards, those of other ranks too. What failed is tried again by the next run.

    Raises
    ------
    DiffscopeError
        The disk is full, or workers cannot be started. What is complete is kept.
    """
    folder, rank = Path(folder).resolve(), rank or Rank()
    unique = list({shard.id: shard for shard in shards}.values())
    with telling_full_disk(folder):
        for name in ("shards", "failed"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        todo = [shard for shard in unique[rank.index :: rank.world] if not result(folder, shard, suffix).exists()]
        jobs = {shard.id: Job(work, shard.spec, result(folder, shard, suffix), threads) for shard in todo}
        if todo:
            with (where or Here()).crew(len(todo)) as crew:
                _work_off(crew, todo, jobs, folder, progress)
    return Outcome.of(unique, folder, suffix)


def _work_off(crew: Crew, todo: list[Shard], jobs: dict[str, Job], folder: Path, progress: Progress | None) -> None:
    """Keep everybody at work until nothing is left to do."""
    total, tried, failed, running = len(todo), 0, 0, {}
    idle, kin = list(range(crew.size)), [""] * crew.size
    if progress:
        progress(0, total, "")
    while todo or running:
        while todo and idle:
            member = idle.pop(0)
            shard = todo.pop(_choose(todo, kin[member], kin))
            running[member], kin[member] = shard, shard.kin
            crew.give(member, jobs[shard.id])
        member, failure = crew.next()
        shard = running.pop(member)
        idle.append(member)
        _take_down(folder, shard, failure)
        tried, failed = tried + 1, failed + (failure is not None)
        if progress:
            progress(tried, total, f"({failed} failed)" if failed else "")


def _choose(todo: list[Shard], own: str, all_kin: list[str]) -> int:
    """The next shard for a worker: of the kin it has, else of one that nobody has, else the first."""
    mine = (index for index, shard in enumerate(todo) if shard.kin == own)
    new = (index for index, shard in enumerate(todo) if shard.kin not in all_kin)
    return next(mine, next(new, 0))


def _take_down(folder: Path, shard: Shard, failure: Failure | None) -> None:
    """Keep the cause of a failure, or forget an earlier one; with a full disk there is no going on."""
    path = folder / "failed" / f"{shard.id}.json"
    growing = unfinished(path)
    if failure is None:
        path.unlink(missing_ok=True)
        growing.unlink(missing_ok=True)
        return
    if failure.disk_full:
        raise OSError(errno.ENOSPC, failure.cause)
    record = {"cause": failure.cause, "spec": shard.spec, "details": failure.details}
    growing.write_text(json.dumps(record, ensure_ascii=False, indent=1), encoding="utf-8")
    os.replace(growing, path)


def _cause(folder: Path, shard: Shard) -> str | None:
    try:
        return json.loads((folder / "failed" / f"{shard.id}.json").read_text(encoding="utf-8"))["cause"]
    except FileNotFoundError:
        return None


@contextmanager
def telling_full_disk(folder: Path) -> Iterator[None]:
    """Say in one line that nothing more can be written, wherever it was noticed."""
    try:
        yield
    except Exception as error:  # safetensors has an exception of its own
        if not disk_is_full(error):
            raise
        raise DiffscopeError(
            f"no space is left for {folder}; what is complete is kept, and the same command goes on when there is space"
        ) from None
