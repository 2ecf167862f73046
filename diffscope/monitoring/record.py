"""Keep what a monitor measures in a folder: one small file a step, each of which appears whole or not at all.

The folder holds ``monitor.json``, which says what is measured, ``step-00000100.nc`` for each step and, where maps are kept,
``maps-00000100.dscope``. A run that was killed goes on in its folder. Steps of another course of the training, whose weights were
others, are moved to a folder in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from filelock import BaseFileLock, FileLock, Timeout

from diffscope.capture.capture import Capture, open_capture
from diffscope.errors import DiffscopeError
from diffscope.storage.atomic import checked_path
from diffscope.storage.checksum import read_proven_json, write_proven_json
from diffscope.storage.provenance import provenance
from diffscope.storage.statistics import attributes_of, open_statistics, write_statistics

FOLDER = "monitor"  # in a Trainer's output_dir
ABOUT = "monitor.json"
STEP = "step-{:08d}.nc"
MAPS = "maps-{:08d}.dscope"
REPLACED = "replaced"  # a folder of steps that another course of the training has replaced
WEIGHTS = "weights"  # the attribute that tells two courses of a training apart
ALERTS = "alerts"
LOGGED = "logged"  # the attribute with the numbers that trackers got, by flat names
LOCK = ".writing"


class Record:
    """The folder in which the measurements of a training are kept.

    Parameters
    ----------
    path : path-like
        Made when the first step is kept.
    about : mapping, optional
        What is measured: a folder that holds measurements of something else is refused. Without it the folder is only read, and
        may be the Trainer's ``output_dir`` that it is in.

    Raises
    ------
    DiffscopeError
        The folder holds something else, or measurements of other prompts, statistics or another model.
    CorruptFile
        Its file monitor.json is damaged.
    """

    def __init__(self, path: str | os.PathLike, about: Mapping[str, Any] | None = None) -> None:
        self.path = folder_of(path) if about is None else checked_path(path)
        self._read: dict[int, tuple[int, xr.Dataset]] = {}  # by step, the time of its file and what it holds
        self._claim: BaseFileLock | None = None
        self._new = None if about is None else dict(about)  # what monitor.json will say, until it is written
        if (self.path / ABOUT).is_file():
            self.about = read_proven_json(self.path / ABOUT, "remove the folder to begin anew")
            self._check()
        elif about is None:
            raise DiffscopeError(f"{self.path} holds no measurements of a training; give the folder that a monitor writes")
        elif not is_free(self.path):
            raise DiffscopeError(f"{self.path} is there and holds no measurements of a training; give another path")

    def _check(self) -> None:
        """Refuse a folder with measurements of something else."""
        other = [name for name, value in (self._new or {}).items() if self.about.get(name) != json.loads(json.dumps(value))]
        if other:
            raise DiffscopeError(f"{self.path} is of a monitor with other {' and '.join(other)}; give another path")
        self._new = None

    def _begin(self) -> None:
        """Make the folder, which no process but the one that keeps steps ever does."""
        if self._new is not None:
            self.path.mkdir(parents=True, exist_ok=True)
            self.about = {**self._new, **provenance()}
            write_proven_json(self.path / ABOUT, self.about, indent=1)
            self._new = None

    def claimed(self) -> bool:
        """Return whether this process may write the folder, which one process does at a time.

        The system ends its claim with the process, however that ends. Several monitors of one process share it. On a file system
        without locks every process may write.
        """
        if self._claim is not None:
            return True
        lock = FileLock(self.path / LOCK, timeout=0, is_singleton=True, thread_local=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            return False
        except (OSError, NotImplementedError):
            return True
        if isinstance(lock, FileLock):  # and not what filelock falls back to, a file that a killed process leaves behind
            self._claim = lock
        else:
            lock.release()
        return True

    @property
    def steps(self) -> list[int]:
        """The steps that are kept, ascending."""
        return _numbers(self.path.glob("step-*.nc"))

    @property
    def steps_with_maps(self) -> list[int]:
        """The steps of which maps are kept too, ascending."""
        return _numbers(self.path.glob("maps-*.dscope"))

    def weights(self, step: int) -> str | None:
        """Return the fingerprint of the weights that a step was measured with; None if there is no such step."""
        file = self.path / STEP.format(step)
        return attributes_of(file).get(WEIGHTS) if file.is_file() else None

    def logged(self, step: int) -> dict[str, float]:
        """Return the numbers of a step by the flat names that trackers got them by."""
        return json.loads(attributes_of(self.path / STEP.format(step))[LOGGED])

    def add(self, step: int, dataset: xr.Dataset, maps: Capture | None = None) -> None:
        """Write the measurements of a step, in one move, after what its maps are of."""
        self._begin()
        if maps is not None:
            maps.save(self.path / MAPS.format(step))
        write_statistics(dataset, self.path / STEP.format(step))

    def maps(self, step: int) -> Capture:
        """Return what some heads attended with at a step, on the first prompt.

        Raises DiffscopeError if no maps of this step are kept, and CorruptFile if the file is damaged.
        """
        file = self.path / MAPS.format(step)
        if not file.is_file():
            kept = ", ".join(map(str, self.steps_with_maps)) or "none"
            raise DiffscopeError(f"{self.path} has no maps of step {step}; those that it has are of the steps: {kept}")
        return open_capture(file)

    def replace_from(self, step: int) -> list[int]:
        """Move the steps from one on to a folder of their own, and return them."""
        moved = [kept for kept in self.steps if kept >= step]
        files = [STEP.format(kept) for kept in moved] + [MAPS.format(kept) for kept in self.steps_with_maps if kept >= step]
        if files:
            place = next(name for number in range(1, 10**6) if not (name := self.path / f"{REPLACED}-{number}").exists())
            place.mkdir()
            for file in files:
                os.replace(self.path / file, place / file)
        return moved

    def table(self, step: int) -> xr.Dataset:
        """Return what was measured at one step, which is read once; FileNotFoundError if it is not there."""
        file = self.path / STEP.format(step)
        written = file.stat().st_mtime_ns
        if step not in self._read or self._read[step][0] != written:
            self._read[step] = written, open_statistics(file)
        return self._read[step][1]

    def dataset(self) -> xr.Dataset:
        """Return everything that is kept, by ``step``; files that were read before are not read again.

        Raises DiffscopeError if nothing was measured yet, and CorruptFile if a file is damaged.
        """
        tables = {}
        for step in self.steps:
            with suppress(FileNotFoundError):  # moved away by the training that goes on
                tables[step] = self.table(step)
        if not tables:
            raise DiffscopeError(f"{self.path} holds no step yet; wait until the training has measured one")
        return _joined(tables).assign_attrs({name: value for name, value in self.about.items() if isinstance(value, str)})


def open_record(path: str | os.PathLike) -> xr.Dataset:
    """Read what a monitor has kept so far, by step; the training may be going on.

    Parameters
    ----------
    path : path-like
        The folder, or the ``output_dir`` of a Trainer that it is in.

    Returns
    -------
    xarray.Dataset
        Statistics by step, layer and head, averaged over queries and prompts; ``seconds``, what each measurement took; ``loss``,
        if the training gave it. The attribute ``alerts`` is JSON: a list of step, rule and text.

    Raises
    ------
    DiffscopeError
        It is no such folder, or nothing was measured yet.
    CorruptFile
        A file is damaged.
    """
    return Record(path).dataset()


def folder_of(path: str | os.PathLike) -> Path:
    """Return the folder of a monitor, which may be in the one that is named: a Trainer's ``output_dir``."""
    place = checked_path(path)
    inside = place / FOLDER
    return inside if (inside / ABOUT).is_file() and not (place / ABOUT).is_file() else place


def stamp(path: Path) -> dict[str, int]:
    """Return the files of a folder's steps and maps with the times at which they were written, by which a new one is seen."""
    found = {}
    for file in (each for kind in ("step-*.nc", "maps-*.dscope") for each in sorted(path.glob(kind))):
        with suppress(FileNotFoundError):  # moved away by the training that goes on
            found[file.name] = file.stat().st_mtime_ns
    return found


def is_free(path: Path) -> bool:
    """Return whether a record can begin at a path: nothing is there, or a folder with what a killed beginning has left."""
    return not path.exists() or (path.is_dir() and all(file.name.startswith(".") for file in path.iterdir()))


def _numbers(files: Iterable[Path]) -> list[int]:
    """Return the steps that files are named after, ascending."""
    return sorted(int(file.stem.rpartition("-")[2]) for file in files)


def _joined(tables: Mapping[int, xr.Dataset]) -> xr.Dataset:
    """Join the Datasets of steps along ``step``."""
    steps = xr.DataArray(list(tables), dims="step", name="step", attrs={"long_name": "step of training", "units": "steps"})
    first, *others = tables.values()
    alike = all(set(table) == set(first) and table.sizes == first.sizes for table in others)
    if alike:  # xarray.concat takes a second for some hundred steps
        stacked = {
            name: (("step", *values.dims), np.stack([table[name].values for table in tables.values()]), values.attrs)
            for name, values in first.items()
        }
        joined = xr.Dataset(stacked, {**first.coords, "step": steps})
    else:
        joined = xr.concat(tables.values(), steps, join="outer", data_vars="all", combine_attrs="drop_conflicts")
    alerts = [alert for table in tables.values() for alert in json.loads(table.attrs.get(ALERTS, "[]"))]
    shared = {name: value for name, value in first.attrs.items() if name not in (WEIGHTS, ALERTS, LOGGED)}
    joined.attrs = {**shared, ALERTS: json.dumps(alerts)}
    return joined
