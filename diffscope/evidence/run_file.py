"""Open the file that holds the evidence of a run, and read it at one step as the evidence of an open model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.evidence.heads import UNTRAINED_LAYERS, UNTRAINED_MEAN
from diffscope.evidence.take import LAST_QUERY, PARTS
from diffscope.storage.statistics import open_statistics

EVIDENCE = "evidence.nc"
#: Raised by one if what is taken of a run would come out otherwise, or be named otherwise, than in the files that there are.
EVIDENCE_FORMAT = 3
Array = TypeVar("Array", xr.DataArray, xr.Variable)
SEEDED = re.compile(r"seed-\d+")  # the folder of a run of a cohort


def outdated(folder: str | Path) -> list[str]:
    """Return the runs of a cohort, ``ARM/seed-N``, whose evidence is of a format that is not read here, or is missing."""
    names = []
    for run in sorted(
        path for path in Path(folder).glob("*/seed-*") if (path / "config.json").is_file() or (path / EVIDENCE).is_file()
    ):
        path = run / EVIDENCE
        if not path.is_file() or open_statistics(path).attrs.get("format") != EVIDENCE_FORMAT:
            names.append(f"{run.parent.name}/{run.name}")
    return names


def open_evidence(path: str | Path) -> xr.Dataset:
    """Open the evidence that :func:`diffscope.evidence.runs.store_run` wrote.

    Raises DiffscopeError if it is of another format, or of another run than the one of a cohort, ``ARM/seed-N``, in whose folder
    it lies.
    """
    path = Path(path)
    dataset = open_statistics(path)
    if (written := dataset.attrs.get("format")) != EVIDENCE_FORMAT:
        raise DiffscopeError(
            f"{path} has format {written} of evidence, and format {EVIDENCE_FORMAT} is read here; take it "
            "anew with: diffscope train RECIPE --out FOLDER --recompute-evidence"
        )
    folder = path.absolute().parent
    here = f"{folder.parent.name}/{folder.name}"
    of = f"{dataset.attrs.get('arm', folder.parent.name)}/seed-{json.loads(dataset.attrs['settings'])['seed']}"
    if SEEDED.fullmatch(folder.name) and of != here:
        raise DiffscopeError(
            f"{path} is the evidence of another run ({of}); put it into that run's folder, and take this run's "
            "with: diffscope train RECIPE --out FOLDER --recompute-evidence"
        )
    return dataset


def at_step(evidence: xr.Dataset, step: int = -1, place: int = 0) -> xr.Dataset:
    """Return the evidence of a run at one step in the form of an open model's, with one prompt: the mean over all.

    Parameters
    ----------
    evidence : Dataset
        As :func:`diffscope.evidence.runs.take_run` gives it.
    step : int
        Index along ``step``, which is not the step of the training; −1 is the last.
    place : int
        Of the step in a series. Statistics of the last query are compared with another untrained model at each place.

    Returns
    -------
    Dataset
        As :mod:`diffscope.evidence.take` says, but of untrained models with means over heads, ``untrained_mean.NAME`` (untrained,
        prompt) and ``untrained_layers.NAME`` (untrained, prompt, layer); ``error.NAME`` is the standard error over prompts.
    """
    at = evidence.isel(step=step).mean("distractors")
    variables = _by_name(at["value"], "quantity") | defined(_by_name(at["outcome"], "measure"))
    if step in (-1, evidence.sizes["step"] - 1):
        variables |= _by_name(at["end_value"], "end_quantity")
        variables |= {f"error.{name}": error for name, error in _by_name(at["end_error"], "end_quantity").items()}
    for prefix, name in ((UNTRAINED_MEAN, "null"), (UNTRAINED_LAYERS, "null_by_layer")):
        null = defined(_by_name(at[name], "quantity")) if name in at else {}
        variables |= {f"{prefix}{quantity}": _moved(quantity, array, place) for quantity, array in null.items()}
    one_prompt = {name: (("prompt", *array.dims), array.values[None]) for name, array in variables.items()}
    dataset = xr.Dataset(one_prompt | {name: at[name].variable for name in ("weight", "lam", "lam_init", "lambda_star")})
    settings = json.loads(evidence.attrs["settings"])
    attrs = {"differential": int(evidence.attrs["differential"]), "extras": str(evidence.attrs["extras"])}
    attrs |= {"prompts": evidence.attrs["settings"], "seed": settings["seed"], "prompts_of_costs": settings["few"]}
    return dataset.assign_attrs(attrs)


def _by_name(table: xr.DataArray, dim: str) -> dict[str, xr.Variable]:
    """Return the parts of a table by their names along `dim`, without coordinates and indexing, which take most of the time."""
    parts = table.variable.transpose(dim, ...)
    return {str(name): xr.Variable(parts.dims[1:], values) for name, values in zip(table[dim].values, parts.values)}


def defined(variables: Mapping[str, Array]) -> dict[str, Array]:
    """Return those variables that have a value somewhere."""
    return {name: array for name, array in variables.items() if not np.isnan(array.values).all()}


def _moved(name: str, null: xr.Variable, place: int) -> xr.Variable:
    """Return the untrained models of a quantity from number `place` on, if it is one of the last query."""
    return null.roll(untrained=-place) if place and name.partition(".")[0] in PARTS[LAST_QUERY].labels else null
