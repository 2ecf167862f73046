"""Open any file that diffscope wrote: ``diffscope.open``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.storage.atomic import checked_path, is_pickle

if TYPE_CHECKING:
    import xarray as xr

    from diffscope.capture.capture import Capture
    from diffscope.hypotheses.study import Study

STUDY = "study.json"
COHORT = "cohort.nc"
MONITORED = "monitor.json"
KINDS = "a capture, statistics, a study, a trained cohort or a monitored training"
SUFFIXES = ".dscope, .zarr, .nc, .parquet, .csv or study.json"


def open(path: str | os.PathLike) -> Capture | xr.Dataset | Study:
    """Open a file or folder that diffscope wrote.

    The content decides what it is opened as, not only the suffix.

    Parameters
    ----------
    path : path-like
        A saved capture; statistics (.zarr, .nc, .parquet, .csv); a study, which is a ``study.json`` or the folder with it; a
        trained cohort, which is a ``cohort.nc`` or the folder with it; the folder of a
        :func:`diffscope.monitor`, or the ``output_dir`` of a Trainer with one.

    Returns
    -------
    Capture, xarray.Dataset or Study
        A Dataset of statistics, of cohorts and of monitored trainings.

    Raises
    ------
    CorruptFile
        The file is damaged.
    DiffscopeError
        The path does not exist, or diffscope did not write it.
    """
    path = checked_path(path)
    if not path.exists():
        raise DiffscopeError(f"there is no {path}; check the name")
    if not (path.is_file() or path.is_dir()):
        raise DiffscopeError(f"{path} is no regular file, but a pipe or a device; save what comes from it, and open that")
    return _open_folder(path) if path.is_dir() else _open_file(path)


def _open_file(path: Path) -> Capture | xr.Dataset | Study:
    from diffscope.capture.capture import open_capture
    from diffscope.storage.checksum import carries_digest
    from diffscope.storage.statistics import FORMATS, open_statistics

    if path.name == STUDY:
        return _open_study(path.parent)
    if path.suffix.lower() in FORMATS:
        return open_statistics(path)
    try:
        return open_capture(path)
    except CorruptFile:
        if path.suffix.lower() == ".dscope" or carries_digest(path) or is_pickle(path):
            raise
        if (path.parent / "config.json").is_file():
            raise DiffscopeError(f"{path} is part of a model; open it with diffscope.load({str(path.parent)!r})") from None
        raise DiffscopeError(f"{path} is not {KINDS}; the files of these are {SUFFIXES}") from None


def _open_folder(folder: Path) -> xr.Dataset | Study:
    from diffscope.storage.statistics import open_statistics

    if (folder / "zarr.json").is_file() or folder.suffix.lower() == ".zarr":
        return open_statistics(folder)
    if (folder / STUDY).is_file():
        return _open_study(folder)
    if (folder / COHORT).is_file():
        from diffscope.hypotheses.stored import open_cohort

        return open_cohort(folder)
    if (folder / MONITORED).is_file() or (folder / "monitor" / MONITORED).is_file():  # as a Trainer keeps it
        from diffscope.monitoring import open_record

        return open_record(folder)
    if (folder / "config.json").is_file():
        raise DiffscopeError(f"{folder} is a model's folder; open it with diffscope.load({str(folder)!r})")
    names = [entry.name for entry in sorted(folder.iterdir())]
    inside = f"it holds {', '.join(names[:5])}{', …' if len(names) > 5 else ''}" if names else "it is empty"
    raise DiffscopeError(f"{folder} is not the folder of {KINDS}: {inside}; name one of the files")


def _open_study(folder: Path) -> Study:
    from diffscope.hypotheses.study import open_study

    return open_study(folder)
